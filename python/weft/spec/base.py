"""What a drafter is to the engine.

Suffixes: B rows, T = 1 + drafts verified, K drafts, F width of the auxiliary hidden states, V the target's and D the
draft's vocabulary, P pages. A drafter's methods named `draft_*` and `prefill` are device functions: given to
`Stream.launch`, they follow its rule (`runtime/interface.py`). What they write is in buffers that `draft_buffers`
allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Verified:
    """What verification leaves for the drafter, all on the device.

    Row b verified T positions from `base_B[b]`; `tokens_BT[b, t]` is the target's token for position
    `base_B[b] + 1 + t`, and the first `count_B[b] + 1` of them are committed.
    """

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
    def num_draft_tokens(self) -> int: ...
    @property
    def aux_layers(self) -> tuple[int, ...]:
        """Target layers whose incoming hidden states the drafter reads, concatenated to width F."""

    @property
    def d2t(self) -> Tensor | None:
        """[D] int64 offsets: target id = draft id + d2t[draft id]. None where the vocabularies are the same."""

    def draft_buffers(self, batch: int) -> DraftBuffers:
        """Buffers for graphs of `batch` rows."""

    def prefill(self, tokens_1T: Tensor, start: int, aux_1TF: Tensor, page_table_1P: Tensor) -> None:
        """Read a chunk of a prompt: `tokens_1T[0, t]` is the token AFTER position `start + t`, `aux` that position's
        hidden states."""

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        """Read what was committed and write the logits of draft 1."""

    def draft_next(self, verified: Verified, buffers: DraftBuffers, step: int) -> None:
        """Read draft `step` - 1 from `buffers.token_B` and write the logits of draft `step` (2..K)."""


def row_positions(base_B: Tensor, width: int) -> Tensor:
    """[B, width] int64: positions base, base + 1, ..."""
    return base_B[:, None] + torch.arange(width, device=base_B.device)
