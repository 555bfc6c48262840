"""Drafting with one module over and over: it reads the target's hidden states once, and then its own output.

Its entry for position p holds the hidden state at p and the token at p + 1, and predicts the token at p + 2. In the
first drafting step it reads everything that verification committed, with the target's own hidden states; later steps
feed it its own. Entries beyond what was committed are written too and are overwritten before they are read.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from weft.models.base import KVIndex, PagedKV
from weft.spec.base import DraftBuffers, Verified, row_positions


class DraftHead(Protocol):
    """A module that drafts from hidden states. `combine`, `forward` and `logits` are device functions."""

    aux_layers: tuple[int, ...]
    d2t: Tensor | None
    draft_vocab_size: int
    hidden_size: int
    dtype: torch.dtype
    device: torch.device

    def combine(self, aux: Tensor) -> Tensor:
        """What entries read [B, T, H], of the target's hidden states `aux` [B, T, F] at `aux_layers`."""

    def forward(self, tokens: Tensor, features: Tensor, kv: PagedKV, index: KVIndex) -> Tensor:
        """Read entries of `features` [B, T, H] and the tokens after them [B, T]: what the next entries read."""

    def logits(self, x: Tensor) -> Tensor:
        """[..., H] (what `forward` gave) -> [..., draft_vocab_size]."""


class RecurrentDrafter:
    """Drafter of a head over its own one-layer paged KV, with the target's page numbers."""

    reuse_margin = 1  # an entry holds the token after it

    def __init__(self, head: DraftHead, kv: PagedKV) -> None:
        self.head = head
        self.kv = kv
        self.aux_layers = head.aux_layers
        self.d2t = head.d2t

    def draft_buffers(self, batch: int) -> DraftBuffers:
        return head_buffers(self.head, batch)

    def prefill(
        self,
        slot_1: Tensor,
        tokens_1N: Tensor,
        start: int,
        aux_1TF: Tensor,
        page_table_1P: Tensor,
        first: int = 0,
    ) -> None:
        positions = torch.arange(start, start + aux_1TF.shape[1], device=tokens_1N.device)[None]
        self._forward(tokens_1N[:, 1:], self.head.combine(aux_1TF), positions, page_table_1P)

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        tokens_BT = verified.tokens_BT
        positions = row_positions(verified.base_B, tokens_BT.shape[1])
        features = self.head.combine(verified.aux_BTF)
        hidden_BTH = self._forward(tokens_BT, features, positions, verified.page_table_BP)
        self._finish(hidden_at(hidden_BTH, verified.count_B), buffers)

    def draft_next(self, verified: Verified, buffers: DraftBuffers, step: int) -> None:
        positions = (verified.base_B + verified.count_B + (step - 1))[:, None]
        hidden_B1H = self._forward(
            buffers.token_B[:, None], buffers.hidden_BH[:, None], positions, verified.page_table_BP
        )
        self._finish(hidden_B1H[:, 0], buffers)

    def _forward(self, tokens: Tensor, features: Tensor, positions: Tensor, page_table: Tensor) -> Tensor:
        index = KVIndex.at(page_table, positions)
        return self.head.forward(tokens.clamp(min=0), features, self.kv, index)

    def _finish(self, hidden_BH: Tensor, buffers: DraftBuffers) -> None:
        buffers.hidden_BH.copy_(hidden_BH)
        buffers.logits_BD.copy_(self.head.logits(hidden_BH))


def head_buffers(head: DraftHead, batch: int) -> DraftBuffers:
    """Buffers for `batch` rows, zeros."""
    return DraftBuffers(
        logits_BD=torch.zeros(batch, head.draft_vocab_size, dtype=head.dtype, device=head.device),
        token_B=torch.zeros(batch, dtype=torch.int64, device=head.device),
        hidden_BH=torch.zeros(batch, head.hidden_size, dtype=head.dtype, device=head.device),
    )


def hidden_at(hidden_BTH: Tensor, index_B: Tensor) -> Tensor:
    """[B, H]: each row's hidden state at its index."""
    index = index_B[:, None, None].expand(-1, 1, hidden_BTH.shape[2])
    return hidden_BTH.gather(1, index)[:, 0]
