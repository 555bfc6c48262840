"""The engine's memory: state by slot, the fixed buffers of an iteration, and pages on the host.

There are S slots for sequences and one more, the last, for rows that only pad a batch. Every tensor here is allocated
once: graphs hold its address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.config import Logprobs
from weft.core import MAX_LOGPROBS, TokenLogprob
from weft.core.request import MAX_BAD_WORD_TOKENS, MAX_END_TOKENS
from weft.engine.device.tensors import OutputBuffers
from weft.guided.grammar_stream import GrammarStream
from weft.models.base import Model, PagedKV
from weft.ops.slots import SlotParams, advance_slots_
from weft.runtime.interface import Runtime
from weft.spec.base import DraftBuffers, Drafter, Verified


@dataclass(frozen=True)
class LogprobRows:
    """Log-probabilities of positions, and which tokens could be sampled there; on the device or the host.

    There are two tensors, so that two copies bring all to the host. For the N likeliest tokens of each position:

    values: float32 [..., 1 + N + 1]: of the position's token, of the N likeliest, and once more of the position's token
        over the whole vocabulary (`TokenLogprob.unnormalized`).
    tokens: int32 [..., 1 + N + N]: how many tokens could be sampled, the ids of the N likeliest, and whether each of
        these could be sampled.
    """

    values: Tensor
    tokens: Tensor

    @classmethod
    def zeros(cls, slots: int, positions: int, num_top: int, device: torch.device) -> LogprobRows:
        """Memory for `num_top` likeliest tokens (N) at each position of each slot."""
        values = torch.zeros(slots, positions, 2 + num_top, dtype=torch.float32, device=device)
        return cls(values, torch.zeros(slots, positions, 1 + 2 * num_top, dtype=torch.int32, device=device))

    @classmethod
    def pack(
        cls, values: Tensor, unnormalized: Tensor, ids: Tensor, num_allowed: Tensor, is_allowed: Tensor
    ) -> LogprobRows:
        """Rows of n positions. values [n, 1 + N]: of the token, and of the N likeliest, whose `ids` and `is_allowed`
        are [n, N]. unnormalized, num_allowed: [n]."""
        tokens = torch.cat((num_allowed[:, None], ids, is_allowed), 1)
        return cls(torch.cat((values, unnormalized[:, None]), 1), tokens.int())

    @property
    def num_top(self) -> int:
        """The number of likeliest tokens of a position (N)."""
        return self.values.shape[-1] - 2

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.values, self.tokens

    def read(self, slot: int, count: int, top: int) -> list[TokenLogprob]:
        """The first `count` positions of a slot, each with its `top` likeliest tokens."""
        values, tokens = self.values[slot, :count], self.tokens[slot, :count]
        first_flag = 1 + self.num_top
        columns = (
            values[:, 0], values[:, 1 : 1 + top], values[:, -1],
            tokens[:, 0], tokens[:, 1 : 1 + top], tokens[:, first_flag : first_flag + top],
        )  # fmt: skip
        return [
            TokenLogprob(
                value,
                dict(zip(ids, top_values, strict=True)),
                num_allowed,
                tuple(token for token, is_allowed in zip(ids, flags, strict=True) if not is_allowed),
                unnormalized,
            )
            for value, top_values, unnormalized, num_allowed, ids, flags in zip(
                *(column.tolist() for column in columns), strict=True
            )
        ]


class SlotState:
    """The state of every slot on the device.

    length: the number of tokens in the KV cache, which is the position of `last_token`.
    drafts: [K, S+1], memory of the grammar's stream (`guided/grammar_stream.py`). Draft j of a slot is
        `drafts[j-1, slot]`, -1 for none.
    verified: [S+1, K+2], memory of the grammar's stream: the number of accepted drafts, then the target's tokens.
    verified_host, drafts_host: the same in the host's memory, where the grammar reads them.
    num_proposed: [S+1], the number of drafts in the last iteration with drafts, without those of -1.
    results: [(S+1) * (K+3)], the memory of `verified` and `num_proposed`.
    window: [S+1, W+1], for lookahead: the tokens that the next forward reads after each text, and the position at which
        the last window began. None without lookahead.
    request_ids, processors: the requests' ids, and the numbers of their captured processors, 0 for none.
    logprobs: of the tokens in `verified`, [S+1, K+1, ...].
    """

    def __init__(self, grammar: GrammarStream, pages_per_slot: int, max_seq_len: int) -> None:
        self.drafts, self.verified, device = grammar.drafts, grammar.verified, grammar.drafts.device
        self.verified_host, self.drafts_host = grammar.state.verified_host, grammar.state.drafts_host
        self.num_proposed, self.results = grammar.num_proposed, grammar.results
        self.window = grammar.window
        rows = self.verified.shape[0]
        self.dummy = rows - 1
        self.last_token = torch.zeros(rows, dtype=torch.int64, device=device)
        self.length = torch.zeros(rows, dtype=torch.int64, device=device)
        self.request_ids = torch.zeros(rows, dtype=torch.int64, device=device)
        self.processors = torch.zeros(rows, dtype=torch.int64, device=device)
        self.page_table = torch.zeros(rows, pages_per_slot, dtype=torch.int32, device=device)
        # An iteration may write beyond the longest text.
        history_length = max_seq_len + 2 * self.verified.shape[1]
        vocab_size = grammar.state.vocab_size
        self.params = SlotParams.neutral(
            rows, vocab_size, MAX_BAD_WORD_TOKENS, MAX_END_TOKENS, history_length, device
        )
        num_top = min(MAX_LOGPROBS, vocab_size)
        self.logprobs = LogprobRows.zeros(rows, self.verified.shape[1] - 1, num_top, device)

    @property
    def num_beside(self) -> int:
        """The number of tokens of a window (W); 0 without lookahead."""
        return 0 if self.window is None else self.window.shape[1] - 1

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that an iteration reads by slot, in the order of `read_slots_`."""
        return self.length, self.last_token, self.drafts, self.page_table

    @property
    def advancing(self) -> tuple[Tensor, ...]:
        """The tensors that verification writes by slot, in the order of `advance_slots_`."""
        return (
            self.verified, self.last_token, self.length, self.num_proposed, self.drafts, self.verified_host,
        )  # fmt: skip


@dataclass(frozen=True)
class LineTables:
    """Index tables for a row's line: up to T tokens, then the W tokens of its window. Row n of each table is for n
    tokens before the window, 0 to T.

    read: int64 [T+1, T+W], the index of the token at each place of the line, among the T tokens and then the W tokens.
    places: int64 [T+1, W], the places of the window.
    """

    read: Tensor
    places: Tensor

    @classmethod
    def allocate(cls, width: int, beside: int, device: torch.device) -> LineTables:
        """For `width` tokens (T) before windows of `beside` (W)."""
        column = torch.arange(width + beside)
        num_before = torch.arange(width + 1)[:, None]
        in_window = width + (column - num_before).clamp(max=beside - 1)
        read = torch.where(column < num_before, column, in_window)
        return cls(read.to(device), (num_before + column[:beside]).to(device))


@dataclass(frozen=True)
class StepBuffers:
    """The tensors between the nodes of one iteration over B rows that verifies T - 1 drafts.

    raw_logits_BTV: the target's unchanged logits, of the rows that want log-probabilities.
    temperatures_BT: float32, the temperatures of sampling; written unless log-probabilities are of the raw logits.
    logits_NV: the memory of `logits_BTV`, then the logits of windows, [B, W, V].
    lines: the tables for a forward with windows; None if it has none.
    """

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
        """Buffers of `width` positions. The graphs of one batch size share `slots_B`."""
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
        """The `count` rows from row `begin` on, without the drafter's buffers."""

        def narrowed(tensor: Tensor) -> Tensor:
            return tensor.narrow(0, begin, count)

        v = self.verified
        tensors = (v.slots_B, v.tokens_BT, v.count_B, v.base_B, v.aux_BTF, v.page_table_BP)
        logits_BTV = narrowed(self.logits_BTV)
        return StepBuffers(
            narrowed(self.slots_B),
            narrowed(self.tokens_BT),
            logits_BTV,
            narrowed(self.raw_logits_BTV),
            narrowed(self.temperatures_BT),
            Verified(*map(narrowed, tensors)),
            None,
            logits_BTV.flatten(0, 1),
        )


Verify = Callable[[SlotState, StepBuffers, Tensor], None]


def verify_coupled(state: SlotState, buf: StepBuffers, sampled_BT: Tensor) -> None:
    """Accept the drafts that equal the target's tokens.

    That is enough, since sampling is coupled (`ops/slots.py`): the target's token at a position is a function of its
    logits, the request's seed and the position. So the committed tokens are those that decoding without speculation
    would have sampled, whatever the drafter proposed.
    """
    verified = buf.verified
    advance_slots_(
        sampled_BT, buf.slots_B, verified.base_B, buf.tokens_BT, verified.count_B, verified.tokens_BT,
        state.advancing, state.params,
    )  # fmt: skip


def caches_of(kv: PagedKV, drafter: Drafter | None) -> list[PagedKV]:
    """The caches whose pages share numbers: the target's, and the drafter's if it has one."""
    if drafter is None or drafter.kv is None:
        return [kv]
    return [kv, drafter.kv]


@dataclass(frozen=True)
class HostPages:
    """Pages in the host's memory, pinned on CUDA, for cached pages that must leave the device. `tensors[i]` has those
    of cache i: [num_pages, num_layers, page_size, 2, num_kv_heads, head_dim]."""

    num_pages: int
    tensors: Sequence[Tensor]

    @classmethod
    def allocate(cls, runtime: Runtime, caches: Sequence[PagedKV], num_pages: int) -> HostPages:
        """Memory for `num_pages` pages of each cache."""
        shapes = [(num_pages, *cache.page(0).shape) for cache in caches]
        tensors = [
            runtime.pinned(shape, cache.data.dtype) for shape, cache in zip(shapes, caches, strict=True)
        ]
        return cls(num_pages, tensors)


@dataclass
class DecodeParts:
    """The model, caches, drafter and state that an engine decodes with.

    drafter: drafts on the device. has_proposals: whether the host drafts, too. Either makes at most `max_drafts`.
    outputs: the tensors besides tokens that can be gathered.
    logprobs: the distribution whose log-probabilities requests get.
    verify: takes an iteration's sampled tokens int64 [B, T] and moves the slots. A benchmark may replace it before
        anything is captured.
    host: pages in the host's memory; None without offloading.
    """

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
        """The caches whose pages share numbers (`caches_of`)."""
        return caches_of(self.kv, self.drafter)

    @property
    def aux_layers(self) -> tuple[int, ...]:
        return self.drafter.aux_layers if self.drafter is not None else ()
