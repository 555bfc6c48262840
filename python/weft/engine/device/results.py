"""An iteration's results: the device writes them by slot, then copies them to the host.

Verification writes the tokens. `note_logprobs` writes log-probabilities, and `note_offers` writes the likeliest
continuations for beam search. Both run after the iteration, outside of its graph, since few requests want them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core import TokenLogprob
from weft.core.request import Gather
from weft.engine.device.state import DecodeParts, LogprobRows, SlotState, StepBuffers
from weft.engine.device.tensors import OutputBuffers
from weft.ops.log_probs import allowed_tokens, log_probs, log_probs_within, scaled
from weft.ops.slots import LOWEST_TEMPERATURE
from weft.runtime.buffers import PinnedRing, Received
from weft.runtime.interface import Graph, Runtime, Stream


def note_temperatures(state: SlotState, buf: StepBuffers, temperatures: Tensor | None) -> None:
    """Save the temperature at which each position is sampled. A device function.

    `temperatures` holds the guides' temperatures for all positions of all slots. One that is not negative replaces the
    request's. They must be saved, because log-probabilities are computed later, when a guide's temperature may have
    changed.
    """
    num_rows, width = buf.temperatures_BT.shape
    of_request_B1 = state.params.temperature.index_select(0, buf.slots_B)[:, None]
    if temperatures is None:
        buf.temperatures_BT.copy_(of_request_B1.expand(num_rows, width))
        return
    num_slots = state.length.shape[0]
    of_guide_BT = temperatures.view(num_slots, -1).index_select(0, buf.slots_B)[:, :width]
    buf.temperatures_BT.copy_(torch.where(of_guide_BT >= 0, of_guide_BT, of_request_B1))


def note_logprobs(parts: DecodeParts, buf: StepBuffers, max_top_k: int) -> None:
    """Write log-probabilities by slot: those of the verified tokens, and those of the likeliest tokens with a flag
    whether each was allowed.

    All rows of the batch are written. The values of slots that want no log-probabilities are meaningless. `max_top_k`
    is the largest top_k of the rows' requests.
    """
    state = parts.state
    num_rows, width = buf.tokens_BT.shape
    token_N, num_top = buf.verified.tokens_BT.view(-1), state.logprobs.num_top
    masked_NV = buf.logits_BTV.flatten(0, 1)
    if parts.logprobs == "raw":
        values, ids = log_probs(buf.raw_logits_BTV.flatten(0, 1), token_N, num_top)
        unnormalized_N = values[:, 0]
    else:
        temperature_N = buf.temperatures_BT.flatten()
        is_warm_N = temperature_N >= LOWEST_TEMPERATURE
        min_p_N = _by_row(state.params.min_p, buf)
        scaled_NV = scaled(
            masked_NV, torch.where(is_warm_N, temperature_N, 1.0), torch.where(is_warm_N, min_p_N, 0.0)
        )
        values, ids = log_probs(scaled_NV, token_N, num_top)
        unnormalized_N = values[:, 0]
        if parts.logprobs == "normalized":
            top_k_N = torch.where(is_warm_N, _by_row(state.params.top_k, buf), 1)
            values, ids = log_probs_within(scaled_NV, token_N, num_top, top_k_N, max(max_top_k, 1))
    num_allowed_N, is_allowed_NK = allowed_tokens(masked_NV, ids[:, 1:])
    noted = LogprobRows.pack(values, unnormalized_N, ids[:, 1:], num_allowed_N, is_allowed_NK)
    for table, new in zip(state.logprobs.tensors, noted.tensors, strict=True):
        table.narrow(1, 0, width).index_copy_(0, buf.slots_B, new.view(num_rows, width, -1))


def _by_row(by_slot: Tensor, buf: StepBuffers) -> Tensor:
    """Expand per-slot values [S+1] to one for each row of logits, [N]."""
    return by_slot.index_select(0, buf.slots_B).repeat_interleave(buf.tokens_BT.shape[1])


@dataclass(frozen=True)
class OfferBuffers:
    """The C likeliest continuations of each slot, likeliest first. Beam search reads them.

    values: float32 [S+1, C], log-probabilities; -inf for a token that can't be sampled.
    ids: int64 [S+1, C].
    """

    values: Tensor
    ids: Tensor

    @classmethod
    def allocate(cls, state: SlotState, num_offers: int) -> OfferBuffers:
        """Allocate buffers for `num_offers` continuations (C) of each slot."""
        shape, device = (state.length.shape[0], num_offers), state.length.device
        values = torch.full(shape, float("-inf"), dtype=torch.float32, device=device)
        return cls(values, torch.zeros(shape, dtype=torch.int64, device=device))


def note_offers(state: SlotState, buf: StepBuffers, offers: OfferBuffers) -> None:
    """Write the likeliest continuations of each row, after penalties and masks. The logits are divided by the
    temperature, unless sampling is greedy."""
    temperature_B = state.params.temperature.index_select(0, buf.slots_B)
    temperature_B = torch.where(temperature_B >= LOWEST_TEMPERATURE, temperature_B, 1.0)
    logits_BV = buf.logits_BTV[:, 0].float() / temperature_B[:, None]
    values, ids = log_probs(logits_BV, torch.full_like(buf.slots_B, -1), offers.ids.shape[1])
    offers.values.index_copy_(0, buf.slots_B, values[:, 1:])
    offers.ids.index_copy_(0, buf.slots_B, ids[:, 1:])


class ResultRings:
    """The pinned ring buffers to which iterations copy their results. At most two iterations are in flight."""

    def __init__(
        self, runtime: Runtime, stream: Stream, state: SlotState, outputs: OutputBuffers | None = None
    ) -> None:
        by_slot = outputs.by_slot if outputs is not None else {}
        self._outputs = {name: PinnedRing(runtime, tensor) for name, tensor in by_slot.items()}
        self._runtime, self._stream, self._state = runtime, stream, state
        self._offers: dict[int, OfferBuffers] = {}  # by number of offers
        self._offer_rings: dict[int, tuple[PinnedRing, PinnedRing]] = {}
        self._results = PinnedRing(runtime, state.results)
        self._num_slots = state.length.shape[0]
        self._plain: dict[int, StepResults] = {}  # by the address of their memory
        self._logprobs = [PinnedRing(runtime, tensor) for tensor in state.logprobs.tensors]

    def start(
        self,
        logprobs: bool,
        gather: Mapping[int, Gather] | None = None,
        drafts: bool = False,
        offers: Iterable[int] = (),
    ) -> StepResults:
        """Enqueue copies of the results of the work launched so far. Does not wait.

        logprobs: whether to copy log-probabilities.
        gather: the outputs to copy, by slot.
        drafts: whether the work verified drafts.
        offers: selects the offer buffers to copy, by their number of continuations.
        """
        logprob_copies = [ring.start_receive(self._stream) for ring in self._logprobs] if logprobs else None
        slots: dict[str, list[int]] = {}
        for slot, wanted in (gather or {}).items():
            for name in wanted.generated:
                slots.setdefault(name, []).append(slot)
        outputs = {
            name: self._outputs[name].start_receive(self._stream, rows) for name, rows in slots.items()
        }
        offer_copies = {count: self._receive_offers(count) for count in offers}
        # This copy is the last one on the stream, so that waiting for it waits for all copies.
        received = self._results.start_receive(self._stream)
        return StepResults(received, self._num_slots, logprob_copies, outputs, drafts, offer_copies)

    def start_after(self, graph: Graph, drafts: bool) -> StepResults:
        """Launch a graph, and enqueue the copy of its tokens. Does not wait. The results are used again together with
        their memory."""
        received = self._results.receive_after(graph)
        results = self._plain.get(received.address)
        if results is None:
            results = self._plain[received.address] = StepResults(received, self._num_slots, None)
        results.has_drafts, results._verified = drafts, None
        return results

    def offer_buffers(self, num_offers: int) -> OfferBuffers:
        """The buffers for `note_offers` with `num_offers` continuations of each slot. The first call for a number
        allocates them."""
        if num_offers not in self._offers:
            buffers = OfferBuffers.allocate(self._state, num_offers)
            rings = PinnedRing(self._runtime, buffers.values), PinnedRing(self._runtime, buffers.ids)
            self._offers[num_offers], self._offer_rings[num_offers] = buffers, rings
            self._runtime.publish()
        return self._offers[num_offers]

    def _receive_offers(self, num_offers: int) -> tuple[Received, Received]:
        values, ids = self._offer_rings[num_offers]
        return values.start_receive(self._stream), ids.start_receive(self._stream)


class StepResults:
    """One iteration's results on the host: verified tokens, log-probabilities and outputs of each slot.

    Call `wait` and read the results before three more iterations start: the third may reuse their pinned memory. Only
    log-probabilities are copied by `wait`.

    has_drafts: whether the iteration verified drafts. If not, the numbers of verified drafts have no meaning.
    """

    def __init__(
        self,
        received: Received,
        num_slots: int,
        logprobs: list[Received] | None,
        outputs: Mapping[str, Received] | None = None,
        drafts: bool = False,
        offers: Mapping[int, tuple[Received, Received]] | None = None,
    ) -> None:
        self._received, self._num_slots = received, num_slots
        self._logprob_copies = logprobs
        self._gathered = dict(outputs or {})
        self.has_drafts = drafts
        self._offers = dict(offers or {})
        self._verified: list[list[int]] | None = None
        self._num_verified: list[int] = []
        self._num_tokens: dict[int, int] = {}  # by slot, if `beginning` cut its tokens
        self._logprobs: LogprobRows | None = None

    def wait(self) -> StepResults:
        """Wait until the iteration is done and its results are copied."""
        self._received.event.synchronize()
        if self._logprob_copies is not None:
            self._logprobs = LogprobRows(*(received.buffer.clone() for received in self._logprob_copies))
        return self

    @property
    def address(self) -> int:
        """The address of int64 [S+1, K+2] in pinned memory, the number of accepted drafts of each slot, then the tokens
        of all positions, and of int64 [S+1] after it, the numbers of drafts that were verified."""
        return self._received.address

    @property
    def _rows(self) -> list[list[int]]:
        """For each slot, the number of accepted drafts, then the tokens of all positions. The first call copies them,
        and the numbers of verified drafts, for the sequences that Python commits."""
        if self._verified is None:
            values = self._received.array
            self._verified = values[: -self._num_slots].reshape(self._num_slots, -1).tolist()
            if self.has_drafts:
                self._num_verified = values[-self._num_slots :].tolist()
        return self._verified

    def beginning(self, slot: int, count: int) -> StepResults:
        """A copy of these results in which the slot committed only its first `count` tokens and verified no draft after
        them."""
        part = copy(self)
        part._verified = list(self._rows)
        part._num_verified = list(self._num_verified)
        part._verified[slot] = [min(self.count(slot), count), *self.tokens(slot)]
        part._num_tokens = {**self._num_tokens, slot: count}
        if part._num_verified:
            part._num_verified[slot] = min(self.num_drafts(slot), count)
        return part

    def outputs(self, slot: int, gather: Gather, count: int) -> dict[str, Tensor]:
        """The slot's gathered outputs for its first `count` committed tokens: rows [count, ...] by name. Later
        iterations overwrite this memory."""
        return {name: self._gathered[name].buffer[slot, :count] for name in gather.generated}

    def offers(self, slot: int, count: int) -> list[tuple[int, float]]:
        """The slot's likeliest continuations as (token, log-probability), without tokens that can't be sampled. `count`
        is the number of offers of the buffers (`offer_buffers`)."""
        values, ids = (received.buffer[slot].tolist() for received in self._offers[count])
        return [(token, value) for token, value in zip(ids, values, strict=True) if value > float("-inf")]

    def count(self, slot: int) -> int:
        """The number of drafts of the slot that were accepted."""
        return self._rows[slot][0]

    def num_drafts(self, slot: int) -> int:
        """The number of drafts of the slot that were verified."""
        return self._num_verified[slot] if self.has_drafts and self._rows else 0

    def tokens(self, slot: int) -> list[int]:
        """The slot's committed tokens: the accepted drafts, then the token that the target sampled after them."""
        row = self._rows[slot]
        return row[1 : self._num_tokens.get(slot, row[0] + 1) + 1]

    def logprobs(self, slot: int, count: int, top: int) -> list[TokenLogprob]:
        """The log-probabilities of the first `count` committed tokens, each with its `top` likeliest alternatives."""
        assert self._logprobs is not None
        return self._logprobs.read(slot, count, top)
