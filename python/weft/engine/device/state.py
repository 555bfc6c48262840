"""Device state: per request slot, and the fixed buffers of graphs of one batch size.

There are S request slots and one more, the last, for rows that only pad a batch. Every tensor here is allocated once:
graphs hold its address.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.config import Logprobs
from weft.core import MAX_LOGPROBS
from weft.core.request import MAX_BAD_WORD_TOKENS, MAX_END_TOKENS
from weft.engine.device.host_pages import HostPages
from weft.engine.device.tensors import OutputBuffers
from weft.guided.lane import GrammarLane
from weft.models.base import Model, PagedKV
from weft.ops.slots import SlotParams, advance_slots_
from weft.spec.base import DraftBuffers, Drafter, Verified


class SlotState:
    """What the device knows of each slot; `length` is the number of tokens in the KV, the position of `last_token`.

    `drafts` [K, S+1] and `verified` [S+1, K+2] are the grammar lane's (`guided/lane.py`): draft j of a slot is
    `drafts[j-1, slot]`, -1 for none; a row of `verified` is the count of accepted drafts, then the target's tokens.
    `verified_host` and `drafts_host` are the same in the host's memory, where the grammar reads them.
    `num_proposed` is how many drafts there were in the last iteration that verified some, those of -1 left out.
    `results` [(S+1) * (K+3)] is the memory of `verified` and `num_proposed`. `window` [S+1, W+1] is the lane's, too: of
    lookahead, the tokens that the next forward reads beside each text, and where the last one began (None: none).
    `request_ids` are the requests' own, and `processors` the numbers of their captured processors, 0 for none.
    `logprobs` [S+1, K+1, 2+N] and `logprob_ids` [S+1, K+1, 1+N] belong to those tokens: the token's own, then the N
    likeliest; and the token's own once more, of the whole vocabulary. Where an id would be the token's own, how many
    tokens could be drawn stands; that of one that could not is -1 - id.
    """

    def __init__(self, lane: GrammarLane, pages_per_slot: int, max_seq_len: int) -> None:
        self.drafts, self.verified, device = lane.drafts, lane.verified, lane.drafts.device
        self.verified_host, self.drafts_host = lane.state.verified_host, lane.state.drafts_host
        self.num_proposed, self.results = lane.num_proposed, lane.results
        self.window = lane.window
        rows = self.verified.shape[0]
        self.dummy = rows - 1
        self.last_token = torch.zeros(rows, dtype=torch.int64, device=device)
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.request_ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self.processors = torch.zeros(rows, dtype=torch.int64, device=device)
        self.page_table = torch.zeros(rows, pages_per_slot, dtype=torch.int32, device=device)
        written = max_seq_len + 2 * self.verified.shape[1]  # an iteration may go beyond the end
        vocab_size = lane.state.vocab_size
        self.params = SlotParams.neutral(
            rows, vocab_size, MAX_BAD_WORD_TOKENS, MAX_END_TOKENS, written, device
        )
        likeliest = min(MAX_LOGPROBS, vocab_size)
        places = (rows, self.verified.shape[1] - 1)
        self.logprobs = torch.zeros(*places, 2 + likeliest, dtype=torch.float32, device=device)
        self.logprob_ids = torch.zeros(*places, 1 + likeliest, dtype=torch.int64, device=device)

    @property
    def num_beside(self) -> int:
        """Tokens of a window (W); 0 without lookahead."""
        return 0 if self.window is None else self.window.shape[1] - 1

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What an iteration reads of its slots, in the order of `read_slots_`."""
        return self.length, self.last_token, self.drafts, self.page_table

    @property
    def advancing(self) -> tuple[Tensor, ...]:
        """What verification moves, in the order of `advance_slots_`."""
        slots = self.verified, self.last_token, self.length, self.num_proposed, self.drafts
        return *slots, self.verified_host


@dataclass(frozen=True)
class LineTables:
    """How lines of a window behind drafts are put together, by how many tokens stand before it, 0 to T: `read` int64
    [T+1, T+W], which of the T tokens and then W of the window each place reads, and `places` int64 [T+1, W], where the
    window is."""

    read: Tensor
    places: Tensor

    @classmethod
    def allocate(cls, width: int, beside: int, device: torch.device) -> LineTables:
        """For `width` tokens (T) before windows of `beside` (W)."""
        column = torch.arange(width + beside)
        before = torch.arange(width + 1)[:, None]
        behind = width + (column - before).clamp(max=beside - 1)
        read = torch.where(column < before, column, behind)
        return cls(read.to(device), (before + column[:beside]).to(device))


@dataclass(frozen=True)
class StepBuffers:
    """What crosses the nodes of one iteration over B rows that verifies T - 1 drafts. `raw_logits_BTV` are the target's
    before anything acted on them, of the rows that want log-probabilities; `temperatures_BT` float32 is what they were
    drawn with, where log-probabilities are not the raw logits'. `logits_NV` begins with the memory of `logits_BTV`;
    after it are the logits of windows, [B, W, V], where a forward reads some along `lines`."""

    slots_B: Tensor
    tokens_BT: Tensor
    logits_BTV: Tensor
    raw_logits_BTV: Tensor
    temperatures_BT: Tensor
    verified: Verified
    draft: DraftBuffers | None
    logits_NV: Tensor
    lines: LineTables | None = None

    @classmethod
    def allocate(
        cls,
        slots_B: Tensor,
        width: int,
        model: Model,
        state: SlotState,
        drafter: Drafter | None,
    ) -> StepBuffers:
        """Buffers of `width` positions around `slots_B`, which graphs of one batch size share."""
        config, device, batch = model.config, state.length.device, slots_B.shape[0]
        aux = len(drafter.aux_layers) if drafter is not None else 0
        beside = state.num_beside if width > 1 else 0  # an iteration without drafts reads no windows
        logits = (batch, width, config.vocab_size)
        all_logits = torch.zeros(
            batch * (width + beside), config.vocab_size, dtype=config.dtype, device=device
        )

        def integers(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        return cls(
            slots_B=slots_B,
            tokens_BT=integers(batch, width),
            logits_BTV=all_logits[: batch * width].view(logits),
            raw_logits_BTV=torch.zeros(logits, dtype=config.dtype, device=device),
            temperatures_BT=torch.zeros(batch, width, dtype=torch.float32, device=device),
            verified=Verified(
                slots_B=slots_B,
                tokens_BT=integers(batch, width),
                count_B=integers(batch),
                base_B=integers(batch),
                aux_BTF=torch.zeros(
                    batch, width, aux * config.hidden_size, dtype=config.dtype, device=device
                ),
                page_table_BP=torch.zeros(batch, state.page_table.shape[1], dtype=torch.int32, device=device),
            ),
            draft=drafter.draft_buffers(batch) if drafter is not None else None,
            logits_NV=all_logits,
            lines=LineTables.allocate(width, beside, device) if beside else None,
        )

    def narrow(self, begin: int, count: int) -> StepBuffers:
        """`count` of the rows, from row `begin` on, without drafts."""

        def own(tensor: Tensor) -> Tensor:
            return tensor.narrow(0, begin, count)

        v = self.verified
        tensors = (v.slots_B, v.tokens_BT, v.count_B, v.base_B, v.aux_BTF, v.page_table_BP)
        logits_BTV = own(self.logits_BTV)
        return StepBuffers(
            own(self.slots_B),
            own(self.tokens_BT),
            logits_BTV,
            own(self.raw_logits_BTV),
            own(self.temperatures_BT),
            Verified(*map(own, tensors)),
            None,
            logits_BTV.flatten(0, 1),
        )


Verify = Callable[[SlotState, StepBuffers, Tensor], None]


def verify_coupled(state: SlotState, buf: StepBuffers, sampled_BT: Tensor) -> None:
    """Accept the drafts that are the target's own tokens.

    That is enough, since sampling is coupled (`ops/slots.py`): the target's token at a position is a function of its
    logits, the request's seed and the position. So what is committed is what decoding without speculation would have
    sampled, whatever the drafter proposed.
    """
    verified = buf.verified
    advance_slots_(
        sampled_BT, buf.slots_B, verified.base_B, buf.tokens_BT, verified.count_B, verified.tokens_BT,
        state.advancing, state.params,
    )  # fmt: skip


def caches_of(kv: PagedKV, drafter: Drafter | None) -> list[PagedKV]:
    """All that a page holds: the target's keys and values, and the drafter's."""
    own = drafter.kv if drafter is not None else None
    return [kv] if own is None else [kv, own]


@dataclass
class DecodeParts:
    """What an engine decodes with. `drafter` drafts on the device, `has_proposals` says that the host does, too; of
    either at most `max_drafts`. `outputs` is what can be gathered besides tokens, `logprobs` whose the
    log-probabilities are. `verify` takes an iteration's sampled tokens int64 [B, T] and moves the slots; a benchmark
    may put another in its place before anything is captured. `host` is where cached pages go that must leave the
    device."""

    model: Model
    kv: PagedKV
    drafter: Drafter | None
    state: SlotState
    has_proposals: bool
    max_drafts: int
    outputs: OutputBuffers = field(default_factory=OutputBuffers)
    verify: Verify = verify_coupled
    logprobs: Logprobs = "raw"
    host: HostPages | None = None

    @property
    def caches(self) -> list[PagedKV]:
        """All that a page holds: the target's keys and values, and the drafter's."""
        return caches_of(self.kv, self.drafter)

    @property
    def aux_layers(self) -> tuple[int, ...]:
        return self.drafter.aux_layers if self.drafter is not None else ()
