"""What an iteration gave, on the host: by slot, as the device left it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

import torch
from torch import Tensor

from weft.core import TokenLogprob
from weft.core.request import Gather
from weft.engine.device.offers import OfferBuffers
from weft.engine.device.state import SlotState
from weft.engine.device.tensors import OutputBuffers
from weft.runtime.buffers import PinnedRing, Received
from weft.runtime.interface import Runtime, Stream

_NOTHING = torch.empty(0)


class ResultRings:
    """Where iterations leave their results on the host; at most two at a time are under way."""

    def __init__(
        self, runtime: Runtime, stream: Stream, state: SlotState, outputs: OutputBuffers | None = None
    ) -> None:
        by_slot = outputs.by_slot if outputs is not None else {}
        self._outputs = {name: PinnedRing(runtime, tensor) for name, tensor in by_slot.items()}
        self._runtime, self._stream = runtime, stream
        self._offers: dict[int, tuple[PinnedRing, PinnedRing]] = {}
        self._results = PinnedRing(runtime, state.results)
        self._num_slots = state.length.shape[0]
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
        found = {count: self._receive_offers(buffers) for count, buffers in (offers or {}).items()}
        received = self._results.start_receive(self._stream)
        return StepResults(received, self._num_slots, extra, outputs, drafts, found)

    def _receive_offers(self, buffers: OfferBuffers) -> tuple[Received, Received]:
        rings = self._offers.get(buffers.ids.shape[1])
        if rings is None:
            rings = PinnedRing(self._runtime, buffers.values), PinnedRing(self._runtime, buffers.ids)
            self._offers[buffers.ids.shape[1]] = rings
        return rings[0].start_receive(self._stream), rings[1].start_receive(self._stream)


class StepResults:
    """Copies of the slots' verified tokens, log-probabilities and outputs; to be read after `wait`, and before two more
    iterations were started. Of slot s `verified[s]` is the number of accepted drafts, then the tokens of all positions;
    `num_proposed[s]` how many drafts were verified (empty where none were)."""

    def __init__(
        self,
        received: Received,
        num_slots: int,
        logprobs: tuple[Received, Received] | None,
        outputs: Mapping[str, Received] | None = None,
        drafts: bool = False,
        offers: Mapping[int, tuple[Received, Received]] | None = None,
    ) -> None:
        self._received, self._num_slots = received, num_slots
        self._extra = logprobs
        self._gathered = dict(outputs or {})
        self._has_drafts = drafts
        self._offers = dict(offers or {})
        self.verified: list[list[int]] = []
        self.num_proposed: list[int] = []
        self._num_tokens: dict[int, int] = {}  # of slots of which only a beginning counts
        self._logprobs = self._ids = _NOTHING

    def wait(self) -> StepResults:
        """Wait for the work of the iteration: what was verified is copied last."""
        values = self._received.wait().numpy()  # whose slices take less than a tensor's
        self.verified = values[: -self._num_slots].reshape(self._num_slots, -1).tolist()
        if self._has_drafts:
            self.num_proposed = values[-self._num_slots :].tolist()
        if self._extra is not None:
            self._logprobs, self._ids = (received.buffer.clone() for received in self._extra)
        return self

    def beginning(self, slot: int, count: int) -> StepResults:
        """The same as if the slot had committed its first `count` tokens only, with no draft after them."""
        part = copy(self)
        part.verified = list(self.verified)
        part.num_proposed = list(self.num_proposed)
        part.verified[slot] = [min(self.count(slot), count), *self.tokens(slot)]
        part._num_tokens = {**self._num_tokens, slot: count}
        if part.num_proposed:
            part.num_proposed[slot] = min(self.proposed(slot), count)
        return part

    def outputs(self, slot: int, gather: Gather, count: int) -> dict[str, Tensor]:
        """What the slot gathered at the positions of the first `count` committed tokens: rows [count, ...] by name,
        in memory that is used again."""
        return {name: self._gathered[name].buffer[slot, :count] for name in gather.generated}

    def offers(self, slot: int, count: int) -> list[tuple[int, float]]:
        """The slot's likeliest continuations, of `count` that each row offers: tokens and the logarithms of their
        probabilities, without those that can't be."""
        values, ids = (received.buffer[slot].tolist() for received in self._offers[count])
        return [(token, value) for token, value in zip(ids, values, strict=True) if value > float("-inf")]

    def count(self, slot: int) -> int:
        """Accepted drafts."""
        return self.verified[slot][0]

    def proposed(self, slot: int) -> int:
        """How many drafts of the slot were verified."""
        return self.num_proposed[slot] if self.num_proposed else 0

    def tokens(self, slot: int) -> list[int]:
        """The committed tokens: accepted drafts and the one after them."""
        row = self.verified[slot]
        return row[1 : self._num_tokens.get(slot, row[0] + 1) + 1]

    def logprobs(self, slot: int, count: int, top: int) -> list[TokenLogprob]:
        """Of the first `count` committed tokens: each one's own, and the `top` likeliest."""
        rows = self._logprobs[slot, :count]
        values, whole = rows[:, : 1 + top].tolist(), rows[:, -1].tolist()
        ids = self._ids[slot, :count, : 1 + top].tolist()
        return [_token_logprob(*row) for row in zip(values, ids, whole, strict=True)]


def _token_logprob(values: list[float], ids: list[int], whole: float) -> TokenLogprob:
    """Of a row of `SlotState.logprobs` and one of `SlotState.logprob_ids`."""
    num_allowed, *names = ids
    top = {~name if name < 0 else name: value for name, value in zip(names, values[1:], strict=True)}
    return TokenLogprob(values[0], top, num_allowed, tuple(~name for name in names if name < 0), whole)
