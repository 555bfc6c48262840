"""The engine's memory: slot state, the fixed buffers of an iteration, and pages on the host.

There are S slots for sequences. One more slot, the last, is for the rows that pad a batch. Every tensor here is
allocated once, because graphs hold its address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from weft.config import Logprobs
from weft.core import MAX_LOGPROBS, TokenLogprob
from weft.core.request import MAX_BAD_WORD_TOKENS, MAX_END_TOKENS
from weft.engine.device.tensors import OutputBuffers
from weft.guided.grammar_stream import GrammarStream
from weft.models.base import Model, PagedKV
from weft.models.states import States
from weft.ops.attention import Rows
from weft.ops.slots import SlotParams, advance_slots_
from weft.runtime.interface import Runtime
from weft.spec.base import Context, DraftBuffers, Drafter, Verified


@dataclass(frozen=True)
class LogprobRows:
    """Log-probabilities of positions, and which tokens could be sampled there; on the device or the host.

    Everything is packed into two tensors, so that two copies bring it to the host. Each position has N likeliest
    tokens:

    values: float32 [..., 1 + N + 1], log-probabilities: of the position's token, of the N likeliest, and again of the
        position's token, but over the whole vocabulary (`TokenLogprob.unnormalized`).
    tokens: int32 [..., 1 + N + N]: the number of tokens that could be sampled, the ids of the N likeliest, and a flag
        for each whether it could be sampled.
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

        values: [n, 1 + N], the log-probabilities of the token and of the N likeliest.
        ids, is_allowed: [n, N], of the N likeliest.
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

    last_token: [S+1], the last committed token, which the next forward reads.
    length: [S+1], the number of tokens in the KV cache, which is the position of `last_token`.
    drafts: [K, S+1], owned by the grammar stream (`guided/grammar_stream.py`). Draft j of a slot is
        `drafts[j-1, slot]`; -1 for none.
    verified: [S+1, K+2], owned by the grammar stream: the number of accepted drafts, then the target's tokens.
    verified_host, drafts_host: the same values in host memory, where the grammar reads them.
    num_verified: [S+1], the number of drafts that the last iteration with drafts verified. Entries of -1 don't count.
    results: [(S+1) * (K+3)], one tensor over the memory of `verified` and `num_verified`.
    window: [S+1, W+1], for lookahead: the tokens that the next forward reads after each text, and the position at which
        the last window began. None without lookahead.
    request_ids, processors: [S+1], each request's id, and the number of its captured processor (0: none).
    page_table: int32 [S+1, pages_per_slot].
    windowed_table: the same for windowed pages; None without.
    params: the sampling parameters.
    logprobs: [S+1, K+1, ...], for the tokens in `verified`.
    dummy: the slot of rows that pad a batch.
    """

    def __init__(
        self,
        grammar_stream: GrammarStream,
        pages_per_slot: int,
        max_seq_len: int,
        has_windowed: bool = False,
    ) -> None:
        guided_state, device = grammar_stream.state, grammar_stream.drafts.device
        self.drafts, self.verified = grammar_stream.drafts, grammar_stream.verified
        self.verified_host, self.drafts_host = guided_state.verified_host, guided_state.drafts_host
        self.num_verified, self.results = grammar_stream.num_verified, grammar_stream.results
        self.window = grammar_stream.window
        num_slots = self.verified.shape[0]  # with the padding slot
        self.dummy = num_slots - 1
        self.last_token = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.length = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.request_ids = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.processors = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.page_table = torch.zeros(num_slots, pages_per_slot, dtype=torch.int32, device=device)
        self.windowed_table = torch.zeros_like(self.page_table) if has_windowed else None
        # An iteration may write tokens beyond `max_seq_len` before the host cuts them.
        history_length = max_seq_len + 2 * self.verified.shape[1]
        vocab_size = guided_state.vocab_size
        self.params = SlotParams.neutral(
            num_slots, vocab_size, MAX_BAD_WORD_TOKENS, MAX_END_TOKENS, history_length, device
        )
        num_top = min(MAX_LOGPROBS, vocab_size)
        self.logprobs = LogprobRows.zeros(num_slots, self.verified.shape[1] - 1, num_top, device)

    @property
    def num_beside(self) -> int:
        """The number of tokens in a lookahead window (W); 0 without lookahead."""
        return 0 if self.window is None else self.window.shape[1] - 1

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that an iteration reads by slot, in the order of `read_slots_`."""
        return self.length, self.last_token, self.drafts, self.page_table

    @property
    def advancing(self) -> tuple[Tensor, ...]:
        """The tensors that verification writes by slot, in the order of `advance_slots_`."""
        return (
            self.verified, self.last_token, self.length, self.num_verified, self.drafts, self.verified_host,
        )  # fmt: skip


@dataclass(frozen=True)
class LineTables:
    """Index tables for the lines that lookahead reads. A line is one row of the forward's input: n tokens, then the W
    tokens of the row's lookahead window. Row n of each table is for a line with n tokens (0 to T).

    read: int64 [T+1, T+W], for each place of the line an index into the T tokens followed by the W window tokens.
    places: int64 [T+1, W], the places of the window in the line.
    """

    read: Tensor
    places: Tensor

    @classmethod
    def allocate(cls, width: int, beside: int, device: torch.device) -> LineTables:
        """Build the tables for up to `width` tokens (T) before a window of `beside` tokens (W)."""
        column = torch.arange(width + beside)
        num_before = torch.arange(width + 1)[:, None]
        in_window = width + (column - num_before).clamp(max=beside - 1)
        read = torch.where(column < num_before, column, in_window)
        return cls(read.to(device), (num_before + column[:beside]).to(device))


Numbers = TypeVar("Numbers", Tensor, NDArray[np.int64])


class ContextInputs(Generic[Numbers]):
    """The inputs of an iteration that reads prompts, in one int64 tensor on the device or one array on the host, so
    that one copy sends them.

    It has B sampling rows, R parts of prompts and up to N tokens: those of the live sampling rows, then those of the
    parts, then padding. `sizes` is (B, R, N). All attributes are views of `data`.

    live_N, live_BT, live_B: [1], the number of all tokens, of the sampling rows' tokens, and of sampling rows.
    slots, base: [B + R], each row's slot and the position of its first token. `read_slots_` writes the sampling rows'
        base.
    saves: [B + R], the storage row that receives the state after each part (`StateRows.saves`); -1 for none.
    first_R: [R], the position from which each part's prompt is read; those before come from the cache.
    starts: [B + R + 1]; row b has the tokens `starts[b]` to `starts[b + 1] - 1`.
    tokens_N, after_N: the tokens, and the token after each. `read_slots_` writes the sampling rows' tokens, and
        verification the tokens after them.
    """

    def __init__(self, data: Numbers, sizes: tuple[int, int, int]) -> None:
        self.data: Numbers = data
        self.sizes = sizes
        batch, parts, tokens = sizes
        at = 0

        def view(count: int) -> Numbers:
            nonlocal at
            begin, at = at, at + count + count % 2  # an even offset, so that kernels can use wide loads
            part: Numbers = data[begin : begin + count]
            return part

        self.live_N: Numbers = view(1)
        self.live_BT: Numbers = view(1)
        self.live_B: Numbers = view(1)
        self.slots: Numbers = view(batch + parts)
        self.base: Numbers = view(batch + parts)
        self.saves: Numbers = view(batch + parts)
        self.first_R: Numbers = view(parts)
        self.starts: Numbers = view(batch + parts + 1)
        self.tokens_N: Numbers = view(tokens)
        self.after_N: Numbers = view(tokens)

    @staticmethod
    def size(sizes: tuple[int, int, int]) -> int:
        """The number of integers for inputs of these sizes."""
        batch, parts, tokens = sizes
        return 6 + 4 * (batch + parts + 2) + parts + 2 + 2 * (tokens + 1)

    @staticmethod
    def on_host(sizes: tuple[int, int, int]) -> ContextInputs[NDArray[np.int64]]:
        """Inputs on the host, all zeros but `saves`."""
        inputs = ContextInputs(np.zeros(ContextInputs.size(sizes), dtype=np.int64), sizes)
        inputs.saves[:] = -1
        return inputs


@dataclass(frozen=True)
class StepBuffers:
    """The tensors that pass values between the nodes of one iteration. It has B sampling rows and verifies T - 1
    drafts.

    slots: [B], or with `inputs` [B + R], the slots of all rows. `slots_B` are those of the sampling rows.
    tokens_BT: int64, each row's last token, then its drafts (-1: none). `verified.tokens_BT` are the target's tokens.
    raw_logits_BTV: the target's logits before masks and penalties, for the rows that want log-probabilities.
    temperatures_BT: float32, the sampling temperatures; not written if log-probabilities are of the raw logits.
    logits_NV: the memory of `logits_BTV`, followed by the windows' logits [B, W, V].
    lines: the index tables for a forward with lookahead windows; None without.
    inputs: the inputs of an iteration that reads prompts; None if it reads none.
    """

    slots: Tensor
    slots_B: Tensor
    tokens_BT: Tensor
    logits_BTV: Tensor
    raw_logits_BTV: Tensor
    temperatures_BT: Tensor
    verified: Verified
    draft: DraftBuffers | None
    logits_NV: Tensor
    lines: LineTables | None = None
    inputs: ContextInputs[Tensor] | None = None

    @classmethod
    def allocate(
        cls,
        slots_B: Tensor,
        width: int,
        model: Model,
        state: SlotState,
        drafter: Drafter | None,
        states: States | None = None,
    ) -> StepBuffers:
        """Allocate buffers for `width` positions of each row. The graphs of one batch size share `slots_B`."""
        config, device, batch = model.config, state.length.device, slots_B.shape[0]
        aux = len(drafter.aux_layers) if drafter is not None else 0
        beside = state.num_beside if width > 1 else 0  # an iteration without drafts reads no windows
        logits = (batch, width, config.vocab_size)
        all_logits = torch.zeros(
            batch * (width + beside), config.vocab_size, dtype=config.dtype, device=device
        )

        def integers(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        tokens_BT, sampled_BT, base_B = integers(batch, width), integers(batch, width), integers(batch)
        pages = state.page_table.shape[1]
        table_BP = torch.zeros(batch, pages, dtype=torch.int32, device=device)
        return cls(
            slots=slots_B,
            slots_B=slots_B,
            tokens_BT=tokens_BT,
            logits_BTV=all_logits[: batch * width].view(logits),
            raw_logits_BTV=torch.zeros(logits, dtype=config.dtype, device=device),
            temperatures_BT=torch.zeros(batch, width, dtype=torch.float32, device=device),
            verified=Verified(
                slots_B=slots_B,
                tokens_BT=sampled_BT,
                count_B=integers(batch),
                base_B=base_B,
                page_table_BP=table_BP,
                tokens=tokens_BT,
                after=sampled_BT,
                aux=torch.zeros(batch, width, aux * config.hidden_size, dtype=config.dtype, device=device),
                rows=Rows(
                    table_BP,
                    base_B,
                    width,
                    settled=True,
                    states=states.rows(slots_B, batch) if states is not None else None,
                    windowed_table=torch.zeros_like(table_BP) if state.windowed_table is not None else None,
                ),
            ),
            draft=drafter.draft_buffers(batch) if drafter is not None else None,
            logits_NV=all_logits,
            lines=LineTables.allocate(width, beside, device) if beside else None,
        )

    def with_context(self, num_tokens: int, num_parts: int, parts: DecodeParts) -> StepBuffers:
        """Buffers for iterations that also read up to `num_tokens` tokens of `num_parts` parts of prompts. They share
        the memory of logits and drafts with these buffers."""
        batch, width = self.tokens_BT.shape
        state, of_rows, states = parts.state, self.verified, parts.kv.states
        device, num_sampled = state.length.device, batch * width
        total = num_sampled + num_tokens
        sizes = (batch, num_parts, total)
        data = torch.zeros(ContextInputs.size(sizes), dtype=torch.int64, device=device)
        inputs = ContextInputs(data, sizes)
        inputs.slots.fill_(state.dummy)
        inputs.saves.fill_(-1)
        table = torch.zeros(batch + num_parts, state.page_table.shape[1], dtype=torch.int32, device=device)
        tokens_BT, sampled_BT = (
            tensor[:num_sampled].view(batch, width) for tensor in (inputs.tokens_N, inputs.after_N)
        )
        rows = Rows(
            table,
            inputs.base,
            max(num_tokens, width),
            starts=inputs.starts,
            live=inputs.live_N,
            num_short=batch,
            short_width=width,
            states=states.rows(inputs.slots, batch, inputs.saves) if states is not None else None,
            windowed_table=torch.zeros_like(table) if state.windowed_table is not None else None,
        )
        context = Context(
            inputs.slots[batch:],
            inputs.base[batch:],
            inputs.first_R,
            inputs.starts[batch:],
            table[batch:],
            num_tokens,
        )
        aux = torch.zeros(total, of_rows.aux.shape[2], dtype=of_rows.aux.dtype, device=device)
        verified = replace(
            of_rows,
            slots_B=inputs.slots[:batch],
            tokens_BT=sampled_BT,
            base_B=inputs.base[:batch],
            page_table_BP=table[:batch],
            tokens=inputs.tokens_N,
            after=inputs.after_N,
            aux=aux,
            rows=rows,
            live_B=inputs.live_B,
            context=context,
        )
        return replace(
            self,
            slots=inputs.slots,
            slots_B=verified.slots_B,
            tokens_BT=tokens_BT,
            verified=verified,
            lines=None,
            inputs=inputs,
        )


Verify = Callable[[SlotState, StepBuffers, Tensor], None]


def verify_coupled(state: SlotState, buf: StepBuffers, sampled_BT: Tensor) -> None:
    """Accept the drafts that equal the target's tokens.

    Comparing is enough, since sampling is coupled (`ops/slots.py`): the target's token at a position depends only on
    its logits, the request's seed and the position. So decoding without speculation would have sampled the same tokens,
    whatever the drafter proposed.
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

    tensors: one for each group of each KV cache, [num_pages, layers, page_size, width] (`PagedKV.groups`).
    """

    num_pages: int
    tensors: Sequence[Tensor]

    @classmethod
    def allocate(cls, runtime: Runtime, caches: Sequence[PagedKV], num_pages: int) -> HostPages:
        """Allocate `num_pages` host pages for each cache."""
        groups = [group for cache in caches for group in cache.groups]
        tensors = [runtime.pinned((num_pages, *group[:, 0].shape), group.dtype) for group in groups]
        return cls(num_pages, tensors)


@dataclass
class DecodeParts:
    """The model, caches, drafter and state that an engine decodes with.

    drafter: the drafter on the device, if there is one.
    has_proposals: whether the host proposes drafts.
    max_drafts: the most drafts of an iteration, from either source.
    outputs: the tensors besides tokens that can be gathered.
    verify: takes an iteration's sampled tokens int64 [B, T] and advances the slots. It may be replaced before anything
        is captured (docs/changing-verification.md).
    logprobs: the distribution whose log-probabilities requests get.
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
