"""The interface of drafters: on the device, one forward for each draft; on the host, all drafts at once.

Suffixes: B rows, T = 1 + drafts verified, K drafts, N tokens of prompts, F width of the auxiliary hidden states, V the
target's and D the draft's vocabulary, P pages. A drafter's methods `draft_*` and `prefill` are device functions: they
are passed to `Stream.launch` and follow its rule (`runtime/interface.py`). They write only to the buffers of
`draft_buffers` and to the drafter's memory by slot.
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
    """Arguments of a drafter's `load`. `speculation.max_draft_tokens` is the largest number of drafts, K. Memory by
    slot needs `num_slots` + 1 rows; the last one is for padding rows. `tokenizer` is the target's tokenizer or a
    `Vocabulary`; None means the one in its directory."""

    speculation: Speculation
    model_path: Path
    target: Model
    num_slots: int
    num_pages: int
    page_size: int
    max_seq_len: int
    tokenizer: Tokenizer | Vocabulary | None = None


class Span(NamedTuple):
    """Positions `start` to `stop` - 1 of a prompt. Positions before `first` were found in the prefix cache and are not
    read again."""

    start: int
    stop: int
    first: int


@dataclass(frozen=True)
class PromptParts:
    """Parts of B prompts that share one forward. All tensors are on the device; `spans` is on the host.

    Row b belongs to slot `slots_B[b]` and holds tokens `starts[b]` to `starts[b + 1] - 1` of the N tokens, which are
    the positions `spans[b]` of its prompt. `starts` is int64 [B + 1]; `first_B[b]` is the span's `first`. `after_N`
    is the token after each of `tokens_N`, `aux_NF` are the target's hidden states, and `rows` describes the rows for
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
    """The result of verification that a drafter reads, all on the device.

    Row b belongs to slot `slots_B[b]` (padding rows: the last slot) and verified T positions from `base_B[b]` on.
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
    """Buffers that drafting step j fills for step j + 1: `logits_BD` over the draft vocabulary, the picked `token_B`
    (target ids, -1 for none), and the drafter's state `hidden_BH`."""

    logits_BD: Tensor
    token_B: Tensor
    hidden_BH: Tensor


class Drafter(Protocol):
    """Drafts on the device, one token at a time, inside the captured iteration."""

    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Target layers whose input hidden states the drafter reads, concatenated to width F (`Model.forward`)."""

    @property
    def d2t(self) -> Tensor | None:
        """[D] int64 offsets: target id = draft id + d2t[draft id]. None if both vocabularies are equal."""

    @property
    def kv(self) -> PagedKV | None:
        """The drafter's keys and values, addressed by the target's page numbers, or None. Copies of the target's pages
        copy these, too."""

    @property
    def reuse_margin(self) -> int:
        """Number of positions at the end of a cached prefix that the drafter must read again, because its entries there
        depend on later tokens."""

    def draft_buffers(self, batch: int) -> DraftBuffers:
        """Allocate the buffers for graphs of `batch` rows."""

    def prefill(self, parts: PromptParts) -> None:
        """Read parts of prompts. If it raises, the engine calls it again for each row alone."""

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        """Read the committed tokens and write the logits of draft 1. An iteration makes as many drafts as it verified,
        T - 1. It calls this also for T = 1, so that the drafter's KV stays complete."""

    def draft_next(self, verified: Verified, buffers: DraftBuffers, step: int) -> None:
        """Read draft `step` - 1 from `buffers.token_B` and write the logits of draft `step` (2..K)."""


@runtime_checkable
class Proposer(Protocol):
    """Drafts on the host, in native code (`guided/proposals.py`). A drafter on the device may continue after it."""

    @property
    def sources(self) -> Sources:
        """The native sources that it switches on."""


def row_positions(base_B: Tensor, width: int) -> Tensor:
    """Positions base, base + 1, ... of each row: int64 [B, width]."""
    return base_B[:, None] + torch.arange(width, device=base_B.device)
