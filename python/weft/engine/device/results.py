"""What an iteration gave, on the host: by slot, as the device left it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

import torch
from torch import Tensor

from weft.core import TokenLogprob
from weft.engine.device.offers import OfferBuffers
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
        self._runtime, self._stream = runtime, stream
        self._offers: dict[int, tuple[PinnedRing, PinnedRing]] = {}
        self._verified = PinnedRing(runtime, state.verified)
        self._proposed = PinnedRing(runtime, state.proposed)
        self._logprobs = PinnedRing(runtime, state.logprobs)
        self._ids = PinnedRing(runtime, state.logprob_ids)

    def start(
        self,
        logprobs: bool,
        gather: Mapping[int, Gather] | None = None,
        drafts: bool = False,
        offers: Mapping[int, OfferBuffers] | None = None,
    ) -> StepResults:
        """Copy the results of the work issued so far, log-probabilities too if asked for, and what each slot in
        `gather` wants besides; does not wait. `drafts`: whether the work verified some. `offers` are the continuations
        that it offers, by how many each row has."""
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
        found = {count: self._receive_offers(buffers) for count, buffers in (offers or {}).items()}
        return StepResults(self._verified.start_receive(self._stream), extra, outputs, proposed, found)

    def _receive_offers(self, buffers: OfferBuffers) -> tuple[Received, Received]:
        rings = self._offers.get(buffers.ids.shape[1])
        if rings is None:
            rings = PinnedRing(self._runtime, buffers.values), PinnedRing(self._runtime, buffers.ids)
            self._offers[buffers.ids.shape[1]] = rings
        return rings[0].start_receive(self._stream), rings[1].start_receive(self._stream)


class StepResults:
    """Copies of the slots' verified tokens, log-probabilities and outputs; to be read after `wait`, and before two more
    iterations were started."""

    def __init__(
        self,
        verified: Received,
        logprobs: tuple[Received, Received] | None,
        outputs: Mapping[str, Received] | None = None,
        drafts: Received | None = None,
        offers: Mapping[int, tuple[Received, Received]] | None = None,
    ) -> None:
        self._received = verified
        self._extra = logprobs
        self._gathered = dict(outputs or {})
        self._drafts = drafts
        self._offers = dict(offers or {})
        self._verified: list[list[int]] = []
        self._proposed: list[int] = []
        self._num_tokens: dict[int, int] = {}  # of slots of which only a beginning counts
        self._logprobs = self._ids = torch.empty(0)

    def wait(self) -> StepResults:
        """Wait for the work of the iteration: what was verified is copied last."""
        self._verified = self._received.wait().tolist()
        if self._drafts is not None:
            self._proposed = self._drafts.values.tolist()
        if self._extra is not None:
            self._logprobs, self._ids = (received.values.clone() for received in self._extra)
        return self

    def beginning(self, slot: int, count: int) -> StepResults:
        """The same as if the slot had committed its first `count` tokens only, with no draft after them."""
        part = copy(self)
        part._verified = list(self._verified)
        part._proposed = list(self._proposed)
        part._verified[slot] = [min(self.count(slot), count), *self.tokens(slot)]
        part._num_tokens = {**self._num_tokens, slot: count}
        if part._proposed:
            part._proposed[slot] = min(self.proposed(slot), count)
        return part

    def outputs(self, slot: int, gather: Gather, count: int) -> dict[str, Tensor]:
        """What the slot gathered at the positions of the first `count` committed tokens: rows [count, ...] by name,
        in memory that is used again."""
        return {name: self._gathered[name].values[slot, :count] for name in gather.generated}

    def offers(self, slot: int, count: int) -> list[tuple[int, float]]:
        """The slot's likeliest continuations, of `count` that each row offers: tokens and the logarithms of their
        probabilities, without those that can't be."""
        values, ids = (received.values[slot].tolist() for received in self._offers[count])
        return [(token, value) for token, value in zip(ids, values, strict=True) if value > float("-inf")]

    def count(self, slot: int) -> int:
        """Accepted drafts."""
        return self._verified[slot][0]

    def proposed(self, slot: int) -> int:
        """How many drafts of the slot were verified."""
        return self._proposed[slot] if self._proposed else 0

    def tokens(self, slot: int) -> list[int]:
        """The committed tokens: accepted drafts and the one behind them."""
        row = self._verified[slot]
        return row[1 : self._num_tokens.get(slot, row[0] + 1) + 1]

    def logprobs(self, slot: int, count: int, top: int) -> list[TokenLogprob]:
        """Of the first `count` committed tokens: each one's own, and the `top` likeliest."""
        values = self._logprobs[slot, :count, : 1 + top].tolist()
        ids = self._ids[slot, :count, : 1 + top].tolist()
        return [
            TokenLogprob(row[0], dict(zip(names[1:], row[1:], strict=True)))
            for row, names in zip(values, ids, strict=True)
        ]
