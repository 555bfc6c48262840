"""What an iteration gave, on the host: by slot, as the device left it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from weft.core import TokenLogprob
from weft.engine.device.state import SlotState
from weft.engine.device.tensors import Gather, OutputBuffers
from weft.runtime.buffers import PinnedRing, Received
from weft.runtime.interface import Runtime, Stream


class ResultRings:
    """Where iterations leave their results on the host; at most two at a time are under way."""

    def __init__(
        self, runtime: Runtime, stream: Stream, state: SlotState, outputs: OutputBuffers | None = None
    ) -> None:
        by_slot = outputs.by_slot if outputs is not None else {}
        self._outputs = {name: PinnedRing(runtime, tensor) for name, tensor in by_slot.items()}
        self._stream = stream
        self._verified = PinnedRing(runtime, state.verified)
        self._proposed = PinnedRing(runtime, state.proposed)
        self._logprobs = PinnedRing(runtime, state.logprobs)
        self._ids = PinnedRing(runtime, state.logprob_ids)

    def start(
        self, logprobs: bool, gather: Mapping[int, Gather] | None = None, drafts: bool = False
    ) -> StepResults:
        """Copy the results of the work issued so far, log-probabilities too if asked for, and what each slot in
        `gather` wants besides; does not wait. `drafts`: whether the work verified some."""
        extra = (
            (self._logprobs.start_receive(self._stream), self._ids.start_receive(self._stream))
            if logprobs
            else None
        )
        slots: dict[str, list[int]] = {}
        for slot, wanted in (gather or {}).items():
            for name in wanted.generated:
                slots.setdefault(name, []).append(slot)
        outputs = {
            name: self._outputs[name].start_receive(self._stream, rows) for name, rows in slots.items()
        }
        proposed = self._proposed.start_receive(self._stream) if drafts else None
        return StepResults(self._verified.start_receive(self._stream), extra, outputs, proposed)


class StepResults:
    """Copies of the slots' verified tokens, log-probabilities and outputs; to be read after `wait`, and before two more
    iterations were started."""

    def __init__(
        self,
        verified: Received,
        logprobs: tuple[Received, Received] | None,
        outputs: Mapping[str, Received] | None = None,
        drafts: Received | None = None,
    ) -> None:
        self._received = verified
        self._extra = logprobs
        self._gathered = dict(outputs or {})
        self._drafts = drafts
        self._verified: list[list[int]] = []
        self._proposed: list[int] = []
        self._logprobs = self._ids = torch.empty(0)

    def wait(self) -> StepResults:
        """Wait for the work of the iteration: what was verified is copied last."""
        self._verified = self._received.wait().tolist()
        if self._drafts is not None:
            self._proposed = self._drafts.values.tolist()
        if self._extra is not None:
            self._logprobs, self._ids = (received.values.clone() for received in self._extra)
        return self

    def outputs(self, slot: int, gather: Gather, count: int) -> dict[str, Tensor]:
        """What the slot gathered at the positions of the first `count` committed tokens: rows [count, ...] by name,
        in memory that is used again."""
        return {name: self._gathered[name].values[slot, :count] for name in gather.generated}

    def count(self, slot: int) -> int:
        """Accepted drafts."""
        return self._verified[slot][0]

    def proposed(self, slot: int) -> int:
        """How many drafts of the slot were verified."""
        return self._proposed[slot] if self._proposed else 0

    def tokens(self, slot: int) -> list[int]:
        """The committed tokens: accepted drafts and the one behind them."""
        row = self._verified[slot]
        return row[1 : row[0] + 2]

    def logprobs(self, slot: int, count: int, top: int) -> list[TokenLogprob]:
        """Of the first `count` committed tokens: each one's own, and the `top` likeliest."""
        values = self._logprobs[slot, :count, : 1 + top].tolist()
        ids = self._ids[slot, :count, : 1 + top].tolist()
        return [
            TokenLogprob(row[0], dict(zip(names[1:], row[1:], strict=True)))
            for row, names in zip(values, ids, strict=True)
        ]
