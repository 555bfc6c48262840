"""A small model of the target's tokenizer that drafts: its own decoding, one token at a time.

Its entry at position p is the token at p. In the first drafting step it reads everything that verification committed;
later steps feed it its own drafts. Entries beyond what was committed are overwritten before they are read.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor

from weft.errors import ModelError
from weft.models.base import Model, PagedKV
from weft.models.weights import dtype_name, load_model
from weft.ops.attention import Rows
from weft.ops.rows import take_rows
from weft.spec.base import DraftBuffers, DrafterContext, PromptParts, Verified
from weft.spec.same_tokens import check_tokens


class DraftModel:
    """Drafter of a model over its own paged KV, with the target's page numbers.

    Where its vocabulary is shorter than the target's, `d2t` is zeros: ids are the same, the last ones are never
    drafted. `directory` is where a model directory keeps its own.
    """

    directory = "draft"
    aux_layers: tuple[int, ...] = ()
    reuse_margin = 0

    def __init__(self, model: Model, kv: PagedKV, target_vocab_size: int) -> None:
        self.model = model
        self.kv = kv
        size = model.config.vocab_size
        self.d2t: Tensor | None = None
        if size < target_vocab_size:
            self.d2t = torch.zeros(size, dtype=torch.int64, device=model.device)

    @classmethod
    def load(cls, context: DrafterContext) -> DraftModel:
        """The model at `speculation.path`, or the one in the model directory's `draft/`, in the target's dtype."""
        given, target = context.speculation.path, context.target
        path = Path(given) if given else context.model_path / cls.directory
        if not path.is_dir():
            raise ModelError(
                f"{path}: no draft model there; give its directory to Speculation.draft_model(path), "
                "or put it into the model directory as draft/"
            )
        model = load_model(path, target.device, dtype_name(target.config))
        _check_vocabulary(path, model, target)
        check_tokens(path, context, model.config.vocab_size)
        _check_positions(path, model, context)
        kv = PagedKV.for_model(model, context.num_pages, context.page_size)
        return cls(model, kv, target.config.vocab_size)

    def draft_buffers(self, batch: int) -> DraftBuffers:
        config, device = self.model.config, self.model.device
        return DraftBuffers(
            logits_BD=torch.zeros(batch, config.vocab_size, dtype=config.dtype, device=device),
            token_B=torch.zeros(batch, dtype=torch.int64, device=device),
            hidden_BH=torch.zeros(batch, config.hidden_size, dtype=config.dtype, device=device),
        )

    def prefill(self, parts: PromptParts) -> None:
        self.model.forward(parts.tokens_N, self.kv, parts.rows)
        # The token after each part, too: the last one's was just sampled.
        table_BP, begins_B, ends_B = parts.rows.page_table, parts.starts[:-1], parts.starts[1:]
        after_B1 = parts.after_N.index_select(0, ends_B - 1)[:, None]
        self.model.forward(after_B1, self.kv, Rows(table_BP, parts.rows.base + (ends_B - begins_B), 1))

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        width = verified.tokens_BT.shape[1]
        rows = Rows(verified.page_table_BP, verified.base_B, width, offset=1)
        hidden = self.model.forward(verified.tokens_BT, self.kv, rows)
        self.model.logits(take_rows(hidden.last, verified.count_B, buffers.hidden_BH), buffers.logits_BD)

    def draft_next(self, verified: Verified, buffers: DraftBuffers, step: int) -> None:
        rows = Rows(verified.page_table_BP, verified.base_B, 1, verified.count_B, step)
        hidden = self.model.forward(buffers.token_B[:, None], self.kv, rows)
        self.model.logits(hidden.last[:, 0], buffers.logits_BD)


def _check_vocabulary(path: Path, model: Model, target: Model) -> None:
    own, wanted = model.config.vocab_size, target.config.vocab_size
    if own > wanted:
        raise ModelError(
            f"{path / 'config.json'}: 'vocab_size' is {own}; a draft model for this target "
            f"({target.config.architecture}) has {wanted}, or fewer where its tokenizer is the target's"
        )


def _check_positions(path: Path, model: Model, context: DrafterContext) -> None:
    """Warn if requests may be longer than the model can read."""
    longest = context.max_seq_len
    own = model.config.max_position_embeddings
    if own < longest:
        warnings.warn(
            f"{path / 'config.json'}: 'max_position_embeddings' is {own}, but requests may have {longest} positions; "
            "beyond its own a draft model's drafts are seldom right, which costs speed alone "
            f"(max_seq_len={own} keeps requests within them)",
            stacklevel=3,
        )
