"""The interfaces of drafters. A `Drafter` runs on the device, with one forward per draft. A `Proposer` runs on the host
and proposes all drafts at once.

Shape suffixes: B rows, T = 1 + verified drafts, K drafts, N prompt tokens, F width of the auxiliary hidden states, V
the target's and D the draft's vocabulary, P pages. A drafter's methods `draft_*` and `prefill` are device functions:
they are passed to `Stream.launch` and follow its rule (`runtime/interface.py`). They write only to the buffers of
`draft_buffers`, and to the drafter's KV and per-slot state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

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
    `Vocabulary` (default: the tokenizer in the target's directory)."""

    speculation: Speculation
    model_path: Path
    target: Model
    num_slots: int
    num_pages: int
    page_size: int
    max_seq_len: int
    tokenizer: Tokenizer | Vocabulary | None = None


class Span(NamedTuple):
    """A chunk of a prompt, positions `start` to `stop` - 1. Positions before `first` are a prefix-cache hit, and are
    not computed again."""

    start: int
    stop: int
    first: int


@dataclass(frozen=True)
class PromptParts:
    """Prefill chunks of B prompts in one forward. All tensors are on the device; `spans` is on the host.

    Row b belongs to slot `slots_B[b]`. It has the tokens `starts[b]` to `starts[b + 1] - 1` of the N tokens, at the
    positions `spans[b]` of its prompt. `starts` is int64 [B + 1]. `first_B[b]` is `spans[b].first`. `after_N` is the
    token after each of `tokens_N`. `aux_NF` are the target's hidden states, and `rows` describes the rows for
    attention."""

    slots_B: Tensor
    tokens_N: Tensor
    after_N: Tensor
    aux_NF: Tensor
    rows: Rows
    starts: Tensor
    first_B: Tensor
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Verified:
    """The result of verification, which a drafter reads. All tensors are on the device.

    Row b belongs to slot `slots_B[b]` (padding rows: the last slot) and verified T positions, from `base_B[b]` on.
    `tokens_BT[b, t]` is the target's token for position `base_B[b] + 1 + t`; the first `count_B[b] + 1` are committed.
    """

    slots_B: Tensor
    tokens_BT: Tensor
    count_B: Tensor
    base_B: Tensor
    aux_BTF: Tensor
    page_table_BP: Tensor


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

    def prefill(self, parts: PromptParts) -> None:
        """Prefill chunks of several prompts. If it raises, the engine calls it again for each row alone."""

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        """Read the committed tokens and write the logits of draft 1. An iteration makes T - 1 drafts, as many as it
        verified. The engine calls this also for T = 1, so that the drafter's KV stays complete."""

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
