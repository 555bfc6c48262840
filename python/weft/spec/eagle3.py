"""EAGLE3: one decoder layer that reads three of the target's hidden states and drafts from a pruned vocabulary.

Its entry for position p holds the target's features at p and the token at p + 1, and predicts the token at p + 2. In
the first drafting step it reads everything that verification committed, with the target's own features; later steps
feed it its own state. Entries beyond what was committed are written too and are overwritten before they are read.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from weft.config import Speculation
from weft.errors import ModelError
from weft.models.base import KVIndex, Model, PagedKV
from weft.models.eagle3_head import Eagle3Head
from weft.spec.base import DraftBuffers, Verified, row_positions


class Eagle3:
    """Drafter of an EAGLE3 head over its own one-layer paged KV, with the target's page numbers."""

    def __init__(self, head: Eagle3Head, kv: PagedKV, num_draft_tokens: int) -> None:
        self.head = head
        self.kv = kv
        self.num_draft_tokens = num_draft_tokens
        self.aux_layers = head.aux_layers
        self.d2t: Tensor | None = head.d2t

    @classmethod
    def load(
        cls, speculation: Speculation, model_path: Path, target: Model, num_pages: int, page_size: int
    ) -> Eagle3:
        """The head at `speculation.path`, or the one in the model directory's `eagle3/`."""
        path = Path(speculation.path) if speculation.path else model_path / "eagle3"
        if not path.is_dir():
            raise ModelError(
                f"{path}: no EAGLE3 head there; give its directory to Speculation.eagle3(path), "
                "or put it into the model directory as eagle3/"
            )
        head = Eagle3Head.load(path, target)
        kv = head.allocate_kv(num_pages, page_size)
        return cls(head, kv, speculation.num_draft_tokens)

    def draft_buffers(self, batch: int) -> DraftBuffers:
        head = self.head
        return DraftBuffers(
            logits_BD=torch.zeros(batch, head.draft_vocab_size, dtype=head.dtype, device=head.device),
            token_B=torch.zeros(batch, dtype=torch.int64, device=head.device),
            hidden_BH=torch.zeros(batch, head.hidden_size, dtype=head.dtype, device=head.device),
        )

    def prefill(self, tokens_1T: Tensor, start: int, aux_1TF: Tensor, page_table_1P: Tensor) -> None:
        width = tokens_1T.shape[1]
        positions = torch.arange(start, start + width, device=tokens_1T.device)[None]
        self._forward(tokens_1T, self.head.combine(aux_1TF), positions, page_table_1P)

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        tokens_BT = verified.tokens_BT
        positions = row_positions(verified.base_B, tokens_BT.shape[1])
        features = self.head.combine(verified.aux_BTF)
        hidden_BTH = self._forward(tokens_BT, features, positions, verified.page_table_BP)
        index = verified.count_B[:, None, None].expand(-1, 1, hidden_BTH.shape[2])
        self._finish(hidden_BTH.gather(1, index), buffers)

    def draft_next(self, verified: Verified, buffers: DraftBuffers, step: int) -> None:
        positions = (verified.base_B + verified.count_B + (step - 1))[:, None]
        hidden_B1H = self._forward(
            buffers.token_B[:, None], buffers.hidden_BH[:, None], positions, verified.page_table_BP
        )
        self._finish(hidden_B1H, buffers)

    def _forward(self, tokens: Tensor, features: Tensor, positions: Tensor, page_table: Tensor) -> Tensor:
        index = KVIndex.at(page_table, positions)
        return self.head.forward(tokens.clamp(min=0), features, self.kv, index)

    def _finish(self, hidden_B1H: Tensor, buffers: DraftBuffers) -> None:
        buffers.hidden_BH.copy_(hidden_B1H[:, 0])
        buffers.logits_BD.copy_(self.head.logits(hidden_B1H[:, 0]))
