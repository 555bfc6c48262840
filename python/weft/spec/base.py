"""What makes drafts: drafters on the device, one forward for each draft, and proposers on the host, all at once.

Suffixes: B rows, T = 1 + drafts verified, K drafts, N tokens of prompts, F width of the auxiliary hidden states, V the
target's and D the draft's vocabulary, P pages. A drafter's methods named `draft_*` and `prefill` are device functions:
given to `Stream.launch`, they follow its rule (`runtime/interface.py`). What they write is in buffers that
`draft_buffers` allocated, or in the drafter's own memory by slot.
"""

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
    """What a drafter is loaded with. `speculation.max_draft_tokens` is the largest number of drafts (K) asked of it.
    Memory by slot has `num_slots` + 1 rows: the last is for rows that only pad. `tokenizer` is the target's,
    or a `Vocabulary` (None: that of its directory)."""

    speculation: Speculation
    model_path: Path
    target: Model
    num_slots: int
    num_pages: int
    page_size: int
    max_seq_len: int
    tokenizer: Tokenizer | Vocabulary | None = None


class Span(NamedTuple):
    """Positions start..stop-1 of a prompt, whose reading began at `first`: what is before that was found in pages of
    another request."""

    start: int
    stop: int
    first: int


@dataclass(frozen=True)
class PromptParts:
    """Parts of B prompts that are read together, all but `spans` on the device.

    Row b, of slot `slots_B[b]`, has tokens `starts[b]`..`starts[b+1]-1` of all N, those of `spans[b]`; `starts` is
    int64 [B + 1], `first_B[b]` int64 the span's `first`. `after_N` is the token after each of `tokens_N`, `aux_NF` the
    target's hidden states; `rows` are the rows for attention.
    """

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
    """What verification leaves for the drafter, all on the device.

    Row b, of slot `slots_B[b]` (the last slot for rows that only pad), verified T positions from `base_B[b]`;
    `tokens_BT[b, t]` is the target's token for position `base_B[b] + 1 + t`, and the first `count_B[b] + 1` of them
    are committed.
    """

    slots_B: Tensor
    tokens_BT: Tensor
    count_B: Tensor
    base_B: Tensor
    aux_BTF: Tensor
    page_table_BP: Tensor


@dataclass(frozen=True)
class DraftBuffers:
    """What drafting step j leaves for step j+1: `logits_BD` over the draft vocabulary, the picked `token_B` (target
    ids, -1 for none) and `hidden_BH`, the drafter's own carried state."""

    logits_BD: Tensor
    token_B: Tensor
    hidden_BH: Tensor


class Drafter(Protocol):
    """Proposes tokens, one step at a time, inside the captured iteration."""

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Target layers whose incoming hidden states the drafter reads, concatenated to width F (`Model.forward`)."""

    @property
    def d2t(self) -> Tensor | None:
        """[D] int64 offsets: target id = draft id + d2t[draft id]. None where the vocabularies are the same."""

    @property
    def kv(self) -> PagedKV | None:
        """Its own keys and values, with the target's page numbers; None without any. Pages are copied along with the
        target's."""

    @property
    def reuse_margin(self) -> int:
        """How many of the last positions of a prefix that was found again it must read anew: its entries there depend
        on tokens after them, or it needs them to go on."""

    def draft_buffers(self, batch: int) -> DraftBuffers:
        """Buffers for graphs of `batch` rows."""

    def prefill(self, parts: PromptParts) -> None:
        """Read parts of prompts. Where that raises, it is called again for each row alone."""

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        """Read what was committed and write the logits of draft 1. Called without a draft to make, too, so that the
        drafter's KV stays whole. Every iteration drafts as many tokens as it verified, T - 1."""

    def draft_next(self, verified: Verified, buffers: DraftBuffers, step: int) -> None:
        """Read draft `step` - 1 from `buffers.token_B` and write the logits of draft `step` (2..K)."""


@runtime_checkable
class Proposer(Protocol):
    """Drafts on the host, natively (`guided/proposals.py`); a drafter may continue after it."""

    @property
    def sources(self) -> Sources:
        """What it adds to the proposals."""


def row_positions(base_B: Tensor, width: int) -> Tensor:
    """[B, width] int64: positions base, base + 1, ..."""
    return base_B[:, None] + torch.arange(width, device=base_B.device)
