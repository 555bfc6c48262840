"""The engine's memory: slot state, the fixed buffers of an iteration, and pages on the host.

There are S slots for sequences. One more slot, the last, is for the rows that pad a batch. Every tensor here is
allocated once, because graphs hold their addresses.
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
    """Log-probabilities at each position, and the tokens that could be sampled there. On the device or the host.

    All data is packed into two tensors, so that two copies bring it to the host. Each position has its N likeliest
    tokens:

    values: float32 [..., 1 + N + 1], log-probabilities. First the position's token, then the N likeliest tokens, then
        the position's token again, but over the whole vocabulary (`TokenLogprob.unnormalized`).
    tokens: int32 [..., 1 + N + N]. First the number of tokens that could be sampled, then the ids of the N likeliest,
        then for each of these a flag whether it could be sampled.
    """

    values: Tensor
    tokens: Tensor

    @classmethod
    def zeros(cls, slots: int, positions: int, num_top: int, device: torch.device) -> LogprobRows:
        """Allocate rows for `num_top` likeliest tokens (N) at each position of each slot."""
        values = torch.zeros(slots, positions, 2 + num_top, dtype=torch.float32, device=device)
        return cls(values, torch.zeros(slots, positions, 1 + 2 * num_top, dtype=torch.int32, device=device))

    @classmethod
    def pack(
        cls, values: Tensor, unnormalized: Tensor, ids: Tensor, num_allowed: Tensor, is_allowed: Tensor
    ) -> LogprobRows:
        """Pack the rows of n positions.

        values: [n, 1 + N], the log-probabilities of the token and of the N likeliest tokens.
        ids, is_allowed: [n, N], of the N likeliest tokens.
        unnormalized, num_allowed: [n].
        """
        tokens = torch.cat((num_allowed[:, None], ids, is_allowed), 1)
        return cls(torch.cat((values, unnormalized[:, None]), 1), tokens.int())

    @property
    def num_top(self) -> int:
        """The number of likeliest tokens at each position (N)."""
        return self.values.shape[-1] - 2

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        return self.values, self.tokens

    def read(self, slot: int, count: int, top: int) -> list[TokenLogprob]:
        """Unpack the first `count` positions of a slot, each with its `top` likeliest tokens."""
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

    last_token: [S+1], the last committed token, which is the first input of the next forward.
    length: [S+1], the number of tokens in the KV cache, which is the position of `last_token`.
    drafts: [K, S+1], owned by the grammar stream (`guided/grammar_stream.py`). Draft j of a slot is
        `drafts[j-1, slot]`; -1 for none.
    verified: [S+1, K+2], owned by the grammar stream: the number of accepted drafts, then the target's tokens.
    verified_host, drafts_host: the same values in host memory, where the grammar reads them.
    num_proposed: [S+1], the number of drafts that the last iteration with drafts verified. Draft entries of -1 don't
        count.
    results: [(S+1) * (K+3)], one tensor over the memory of `verified` and `num_proposed`.
    window: [S+1, W+1], for lookahead: the W window tokens that the next forward reads after each text, then the
        position at which the last window began. None without lookahead.
    request_ids, processors: [S+1], the id of each slot's request, and the number of its captured processor (0: none).
    page_table: int32 [S+1, pages_per_slot].
    params: the sampling parameters.
    logprobs: [S+1, K+1, ...], for the tokens in `verified`.
    dummy: the slot of rows that pad a batch.
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
        # An iteration may write tokens beyond `max_seq_len` before the host cuts them off.
        history_length = max_seq_len + 2 * self.verified.shape[1]
        vocab_size = grammar.state.vocab_size
        self.params = SlotParams.neutral(
            rows, vocab_size, MAX_BAD_WORD_TOKENS, MAX_END_TOKENS, history_length, device
        )
        num_top = min(MAX_LOGPROBS, vocab_size)
        self.logprobs = LogprobRows.zeros(rows, self.verified.shape[1] - 1, num_top, device)

    @property
    def num_beside(self) -> int:
        """The number of tokens in a lookahead window (W); 0 without lookahead."""
        return 0 if self.window is None else self.window.shape[1] - 1

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that an iteration reads by slot, in the order that `read_slots_` expects."""
        return self.length, self.last_token, self.drafts, self.page_table

    @property
    def advancing(self) -> tuple[Tensor, ...]:
        """The tensors that verification writes by slot, in the order that `advance_slots_` expects."""
        return (
            self.verified, self.last_token, self.length, self.num_proposed, self.drafts, self.verified_host,
        )  # fmt: skip


@dataclass(frozen=True)
class LineTables:
    """Index tables for lookahead. A line is one row of the forward's input: a row's n tokens, then the W tokens of its
    lookahead window, without a gap. Row n of each table is for a line with n tokens (0 to T).

    read: int64 [T+1, T+W]. For each column of the line, an index into the concatenation of T tokens and W window
        tokens.
    places: int64 [T+1, W], the columns of the window in the line.
    """

    read: Tensor
    places: Tensor

    @classmethod
    def allocate(cls, width: int, beside: int, device: torch.device) -> LineTables:
        """Build the tables for up to `width` tokens (T), followed by a window of `beside` tokens (W)."""
        # Columns after a line's window repeat the window's last token. They pad lines with fewer than T tokens.
        column = torch.arange(width + beside)
        num_before = torch.arange(width + 1)[:, None]
        in_window = width + (column - num_before).clamp(max=beside - 1)
        read = torch.where(column < num_before, column, in_window)
        return cls(read.to(device), (num_before + column[:beside]).to(device))


@dataclass(frozen=True)
class StepBuffers:
    """The tensors that pass values between the nodes of one iteration. It has B rows and verifies T - 1 drafts.

    raw_logits_BTV: the target's logits before masks and penalties, for the rows that want log-probabilities.
    temperatures_BT: float32, the sampling temperatures; not written if log-probabilities are those of the raw logits.
    logits_NV: the memory of `logits_BTV`, followed by the windows' logits [B, W, V].
    lines: the index tables for a forward with lookahead windows; None without lookahead.
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
        """Allocate buffers for `width` positions (T) of each row. The graphs of one batch size share `slots_B`."""
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
        """A view of `count` rows from row `begin` on, without the drafter's buffers."""

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

    Comparing is enough, because sampling is coupled (`ops/slots.py`): the target's token at a position depends only on
    its logits, the request's seed and the position. Whatever the drafter proposes, decoding without speculation would
    sample the same tokens.
    """
    verified = buf.verified
    advance_slots_(
        sampled_BT, buf.slots_B, verified.base_B, buf.tokens_BT, verified.count_B, verified.tokens_BT,
        state.advancing, state.params,
    )  # fmt: skip


def caches_of(kv: PagedKV, drafter: Drafter | None) -> list[PagedKV]:
    """The KV caches that share page numbers: the target's, and the drafter's if it has one."""
    if drafter is None or drafter.kv is None:
        return [kv]
    return [kv, drafter.kv]


@dataclass(frozen=True)
class HostPages:
    """Host memory for cached pages that were evicted from the device; pinned on CUDA.

    tensors: one for each KV cache, [num_pages, num_layers, page_size, 2, num_kv_heads, head_dim].
    """

    num_pages: int
    tensors: Sequence[Tensor]

    @classmethod
    def allocate(cls, runtime: Runtime, caches: Sequence[PagedKV], num_pages: int) -> HostPages:
        """Allocate `num_pages` host pages for each cache."""
        shapes = [(num_pages, *cache.page(0).shape) for cache in caches]
        tensors = [
            runtime.pinned(shape, cache.data.dtype) for shape, cache in zip(shapes, caches, strict=True)
        ]
        return cls(num_pages, tensors)


@dataclass
class DecodeParts:
    """The model, caches, drafter and state that an engine decodes with.

    drafter: the drafter on the device, if there is one.
    has_proposals: whether the host proposes drafts.
    max_drafts: the maximum number of drafts in an iteration, from the device or the host.
    outputs: the tensors, besides tokens, that requests can gather.
    verify: takes an iteration's sampled tokens int64 [B, T] and advances the slots. A benchmark may replace it before
        the first graph capture.
    logprobs: the distribution from which log-probabilities are reported.
    host: the host pages; None without offloading.
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
        """The KV caches that share page numbers (`caches_of`)."""
        return caches_of(self.kv, self.drafter)

    @property
    def aux_layers(self) -> tuple[int, ...]:
        return self.drafter.aux_layers if self.drafter is not None else ()
