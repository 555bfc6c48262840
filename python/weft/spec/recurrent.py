"""Drafting with one module that runs once per draft: first on the target's hidden states, then on its own output.

Its KV entry at position p is computed from the hidden state at p and the token at p + 1, and predicts the token at
p + 2. The first drafting step reads the committed tokens with the target's hidden states. Later steps read the drafts
with the module's own hidden states. Entries of rejected drafts are overwritten before they are read."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from weft.models.base import PagedKV
from weft.ops.attention import Rows
from weft.ops.rows import take_rows
from weft.spec.base import DraftBuffers, Verified


class DraftHead(Protocol):
    """A module that drafts from hidden states. `combine`, `forward` and `logits` are device functions."""

    aux_layers: tuple[int, ...]
    d2t: Tensor | None
    draft_vocab_size: int
    hidden_size: int
    dtype: torch.dtype
    device: torch.device

    def combine(self, aux: Tensor, live: Tensor | None = None) -> Tensor:
        """Project the target's hidden states at `aux_layers`, `aux` [..., F], to input features [..., H]. `live`, an
        int64 [1] on the device, is the number of rows to compute."""

    def forward(
        self, tokens: Tensor, features: Tensor, kv: PagedKV, rows: Rows, *, out: Tensor | None = None
    ) -> Tensor:
        """Run the module over `features` [B, T, H] and the tokens after them, `tokens` [B, T]. Rows of different
        lengths are packed as [N, H] and [N]. Returns the features for the next draft, contiguous, in a new tensor or
        `out`, which may be `features`."""

    def logits(self, x: Tensor, out: Tensor | None = None, live: Tensor | None = None) -> Tensor:
        """Map outputs [B, H] of `forward` to logits [B, draft_vocab_size], in a new tensor or `out`. `live`, an int64
        [1] on the device, is the number of rows to compute."""


class RecurrentDrafter:
    """Drafts with a head that has its own one-layer paged KV, which uses the target's page numbers."""

    reuse_margin = 1  # an entry depends on the token after it, which differs after a shared prefix

    def __init__(self, head: DraftHead, kv: PagedKV) -> None:
        self.head = head
        self.kv = kv
        self.aux_layers = head.aux_layers
        self.d2t = head.d2t

    def draft_buffers(self, batch: int) -> DraftBuffers:
        return head_buffers(self.head, batch)

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        features = self.head.combine(verified.aux, verified.rows.live)
        hidden = self.head.forward(verified.after, features, self.kv, verified.rows)
        hidden_BTH = verified.of_sampling(hidden)
        take_rows(hidden_BTH, verified.count_B, buffers.hidden_BH, verified.live_B)
        self.head.logits(buffers.hidden_BH, buffers.logits_BD, verified.live_B)

    def draft_next(self, verified: Verified, buffers: DraftBuffers, step: int) -> None:
        hidden_B1H = buffers.hidden_BH[:, None]
        rows = verified.rows_at(step - 1)
        self.head.forward(buffers.token_B[:, None], hidden_B1H, self.kv, rows, out=hidden_B1H)
        self.head.logits(buffers.hidden_BH, buffers.logits_BD, verified.live_B)


def head_buffers(head: DraftHead, batch: int) -> DraftBuffers:
    """Allocate zeroed buffers for `batch` rows."""
    return DraftBuffers(
        logits_BD=torch.zeros(batch, head.draft_vocab_size, dtype=head.dtype, device=head.device),
        token_B=torch.zeros(batch, dtype=torch.int64, device=head.device),
        hidden_BH=torch.zeros(batch, head.hidden_size, dtype=head.dtype, device=head.device),
    )
