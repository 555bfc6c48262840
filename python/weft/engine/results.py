"""What an iteration gave, on the host: by slot, as the device left it."""

from __future__ import annotations

import torch

from weft.core import TokenLogprob
from weft.engine.state import SlotState
from weft.runtime.buffers import PinnedRing
from weft.runtime.interface import Runtime, Stream


class StepResults:
    """Copies of the slots' verified tokens and log-probabilities; good until the next `read`."""

    def __init__(self, runtime: Runtime, stream: Stream, state: SlotState) -> None:
        self._stream = stream
        self._verified_out = PinnedRing(runtime, state.verified)
        self._logprobs_out = PinnedRing(runtime, state.logprobs)
        self._ids_out = PinnedRing(runtime, state.logprob_ids)
        self._verified = torch.empty(0)
        self._logprobs: torch.Tensor | None = None
        self._ids = torch.empty(0)

    def read(self, logprobs: bool) -> StepResults:
        """Wait for the work issued so far and take its results, log-probabilities too if asked for."""
        if logprobs:
            values, ids = (
                self._logprobs_out.start_receive(self._stream),
                self._ids_out.start_receive(self._stream),
            )
        self._verified = self._verified_out.receive(self._stream)
        if logprobs:
            self._logprobs, self._ids = values.wait(), ids.wait()
        return self

    def count(self, slot: int) -> int:
        """Accepted drafts."""
        return int(self._verified[slot, 0])

    def tokens(self, slot: int) -> list[int]:
        """The committed tokens: accepted drafts and the one behind them."""
        row: list[int] = self._verified[slot].tolist()
        return row[1 : row[0] + 2]

    def logprobs(self, slot: int, count: int, top: int) -> list[TokenLogprob]:
        """Of the first `count` committed tokens: each one's own, and the `top` likeliest."""
        assert self._logprobs is not None
        values = self._logprobs[slot, :count, : 1 + top].tolist()
        ids = self._ids[slot, :count, : 1 + top].tolist()
        return [
            TokenLogprob(row[0], dict(zip(names[1:], row[1:], strict=True)))
            for row, names in zip(values, ids, strict=True)
        ]
