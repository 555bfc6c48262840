"""The interfaces of drafters. A `Drafter` runs on the device, with one forward per draft. A `Proposer` runs on the host
and proposes all drafts at once.

Shape suffixes: B sampling rows, T = 1 + verified drafts, K drafts, R parts of prompts, N tokens of an iteration, F
width of the auxiliary hidden states, V the target's and D the draft's vocabulary, P pages. A drafter's methods
`draft_*` are device functions: they are passed to `Stream.launch` and follow its rule (`runtime/interface.py`). They
write only to the buffers of `draft_buffers`, and to the drafter's KV and per-slot state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from weft.config import Speculation
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.guided.proposals import Sources
from weft.models.base import Model, PagedKV
from weft.ops.attention import Rows
from weft.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class DrafterContext:
    """The arguments of a drafter's `load`. `speculation.max_draft_tokens` is K, the largest number of drafts. Per-slot
    state needs `num_slots` + 1 rows; padding rows use the last one. `tokenizer` is the target's tokenizer or a
    `Vocabulary` (default: the tokenizer in the target's directory). `kv_dtype` is the dtype of cached keys and values
    (default: that of activations)."""

    speculation: Speculation
    model_path: Path
    target: Model
    num_slots: int
    num_pages: int
    page_size: int
    max_seq_len: int
    tokenizer: Tokenizer | Vocabulary | None = None
    kv_dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Context:
    """The R parts of prompts that an iteration reads. All tensors are on the device.

    Row r belongs to slot `slots_R[r]` (rows without a prompt: the last slot). Its tokens are `starts[r]` to
    `starts[r + 1] - 1` of the iteration's N tokens. The first one is at position `base_R[r]`. Positions before
    `first_R[r]` are a prefix-cache hit, and are not computed again. `starts` is int64 [R + 1]. `size` is the largest
    number of tokens of all parts together.
    """

    slots_R: Tensor
    base_R: Tensor
    first_R: Tensor
    starts: Tensor
    page_table_RP: Tensor
    size: int


@dataclass(frozen=True)
class Verified:
    """The result of verification, which a drafter reads. All tensors are on the device.

    An iteration has B sampling rows. Row b belongs to slot `slots_B[b]` (padding rows: the last slot) and verified T
    positions, from `base_B[b]` on. `tokens_BT[b, t]` is the target's token for position `base_B[b] + 1 + t`; the first
    `count_B[b] + 1` are committed.

    If the iteration also reads prompts, `context` has its R parts of prompts. Then the iteration's N tokens are those
    of the live sampling rows, then those of the parts, then padding. Otherwise they are the B * T tokens of the
    sampling rows.

    tokens, after: int64 [N], or [B, T] without context: the iteration's tokens, and the token after each. After a
        sampling row's position it is the target's token, so `after` begins with `tokens_BT`.
    aux: [N, F] or [B, T, F], the target's hidden states.
    rows: the rows of all tokens for attention: B sampling rows, then R parts.
    live_B: int64 [1], the number of sampling rows that are not padding; None without context.
    """

    slots_B: Tensor
    tokens_BT: Tensor
    count_B: Tensor
    base_B: Tensor
    page_table_BP: Tensor
    tokens: Tensor
    after: Tensor
    aux: Tensor
    rows: Rows
    live_B: Tensor | None = None
    context: Context | None = None

    def of_sampling(self, x: Tensor) -> Tensor:
        """The entries of `x` [N, ...] for the sampling rows, as a view [B, T, ...]. Without context, `x` itself."""
        if self.context is None:
            return x
        batch, width = self.tokens_BT.shape
        return x[: batch * width].view(batch, width, *x.shape[1:])

    def rows_at(self, offset: int) -> Rows:
        """One token of each sampling row, at `offset` positions after the last committed one."""
        return Rows(
            self.page_table_BP,
            self.base_B,
            1,
            self.count_B,
            offset,
            settled=self.rows.settled,
            live=self.live_B,
        )


@dataclass(frozen=True)
class DraftBuffers:
    """Buffers that pass data from drafting step j to step j + 1: `logits_BD` over the draft vocabulary, the sampled
    `token_B` (target ids, -1 for none), and the drafter's hidden state `hidden_BH`."""

    logits_BD: Tensor
    token_B: Tensor
    hidden_BH: Tensor


class Drafter(Protocol):
    """Drafts on the device, one token at a time, inside the captured iteration."""

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """The target layers whose input hidden states the drafter reads, concatenated to width F (`Model.forward`)."""

    @property
    def d2t(self) -> Tensor | None:
        """[D] int64 offsets: target id = draft id + d2t[draft id]. None if draft ids are target ids."""

    @property
    def kv(self) -> PagedKV | None:
        """The drafter's paged KV, or None. It uses the target's page numbers, so a copy of a target page must copy the
        drafter's page, too."""

    @property
    def reuse_margin(self) -> int:
        """The number of positions at the end of a cached prefix that the drafter must compute again, because its KV
        entries there depend on later tokens."""

    def draft_buffers(self, batch: int) -> DraftBuffers:
        """Allocate the buffers for graphs of `batch` rows."""

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        """Read the committed tokens and the parts of prompts, and write the logits of draft 1. An iteration makes T - 1
        drafts, as many as it verified. The engine calls this also for T = 1, so that the drafter's KV stays complete.
        """

    def draft_next(self, verified: Verified, buffers: DraftBuffers, step: int) -> None:
        """Read draft `step` - 1 from `buffers.token_B` and write the logits of draft `step` (2..K)."""


@runtime_checkable
class Proposer(Protocol):
    """Drafts on the host, in native code (`guided/proposals.py`). A device drafter may extend its drafts."""

    @property
    def sources(self) -> Sources:
        """The native sources that the proposer enables."""


def row_positions(base_B: Tensor, width: int) -> Tensor:
    """The positions base, base + 1, ... of each row: int64 [B, width]."""
    return base_B[:, None] + torch.arange(width, device=base_B.device)
