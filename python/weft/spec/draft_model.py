"""A small draft model with the target's tokenizer, which decodes one draft at a time. It may be of another family.

Its KV entry at position p is for the token at p, as in the target. The first drafting step reads the tokens that
verification committed, and prompts. Later steps read the model's own drafts. KV entries of rejected drafts are
overwritten before they are read."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from weft.config import Speculation, model_directory
from weft.errors import ModelError
from weft.grammar.vocabulary.hugging_face import read_huggingface
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.models.base import Model, PagedKV
from weft.models.config import ModelConfig
from weft.models.loading import load_model
from weft.ops.attention import Rows
from weft.ops.rows import packed_places, take_rows
from weft.spec.base import DraftBuffers, DrafterContext, Verified
from weft.tokenizer.files import has_tokenizer
from weft.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelBuffers(DraftBuffers):
    """Buffers of a draft model. `all_logits` are over its whole vocabulary, and `logits_BD` are those of the ids that
    the target has, too: a view of them."""

    all_logits: Tensor


class DraftModel:
    """Drafts with a model that has its own paged KV, which uses the target's page numbers.

    Ids are the target's. The vocabularies may have different sizes, since models pad them differently. An id that only
    one of them has is never drafted. If the target has more, `d2t` is zeros. Without a path, the model is in the
    subdirectory `directory` of the target's model directory.
    """

    directory = "draft"
    aux_layers: tuple[int, ...] = ()
    reuse_margin = 0

    def __init__(self, model: Model, kv: PagedKV, target_vocab_size: int) -> None:
        self.model = model
        self.kv = kv
        self._num_drafted = min(model.config.vocab_size, target_vocab_size)
        self.d2t: Tensor | None = None
        if self._num_drafted < target_vocab_size:
            self.d2t = torch.zeros(self._num_drafted, dtype=torch.int64, device=model.device)

    @classmethod
    def find(cls, speculation: Speculation, model_path: Path, target: ModelConfig) -> Path:
        """The directory of the draft model, or the one that stands for its GGUF file. Raises `ModelError` if there is
        none."""
        path = Path(speculation.path) if speculation.path else model_path / cls.directory
        if path.is_file():
            return model_directory(path)
        if not path.is_dir():
            raise ModelError(
                f"{path}: no draft model there; give its directory to Speculation.draft_model(path), "
                "or put it into the model directory as draft/"
            )
        return path

    @classmethod
    def load(cls, context: DrafterContext) -> DraftModel:
        """Load the model from `speculation.path`, or from `draft/` in the model directory, in the target's dtype.
        Raises `ModelError` if the model does not fit the target."""
        target = context.target
        path = cls.find(context.speculation, context.model_path, target.config)
        config = target.config
        model = load_model(path, target.device, max_seq_len=config.max_seq_len, like=config)
        _check_tokens(path, context)
        _check_positions(path, model, context)
        if model.config.has_states:
            raise ModelError(
                f"{path}: {model.config.architecture} has recurrent layers, and a draft model must have none; use "
                "another one with the same tokenizer"
            )
        kv = PagedKV.for_model(model, context.num_pages, context.page_size, dtype=context.kv_dtype)
        return cls(model, kv, target.config.vocab_size)

    def draft_buffers(self, batch: int) -> ModelBuffers:
        config, device = self.model.config, self.model.device
        all_logits = torch.zeros(batch, config.vocab_size, dtype=config.dtype, device=device)
        return ModelBuffers(
            logits_BD=all_logits[:, : self._num_drafted],
            token_B=torch.zeros(batch, dtype=torch.int64, device=device),
            hidden_BH=torch.zeros(batch, config.hidden_size, dtype=config.dtype, device=device),
            all_logits=all_logits,
        )

    def draft_first(self, verified: Verified, buffers: DraftBuffers) -> None:
        assert isinstance(buffers, ModelBuffers)
        rows, tokens, last_B, live_B = verified.rows, verified.after, verified.count_B, verified.live_B
        batch, width = verified.tokens_BT.shape
        if rows.starts is None:
            rows = replace(rows, offset=1, settled=False)
        else:
            # A prompt's first token is the token after no other. So every row reads its first token, too.
            tokens, rows = _with_first_tokens(verified.tokens, verified.after, rows, rows.starts)
            last_B, width = last_B + 1, width + 1
        hidden = self.model.forward(tokens, self.kv, rows).last
        hidden_BTH = hidden.flatten(0, -2)[: batch * width].unflatten(0, (batch, width))
        take_rows(hidden_BTH, last_B, buffers.hidden_BH, live_B)
        self.model.logits(buffers.hidden_BH, buffers.all_logits, live=live_B)

    def draft_next(self, verified: Verified, buffers: DraftBuffers, step: int) -> None:
        assert isinstance(buffers, ModelBuffers)
        rows = replace(verified.rows_at(step), settled=False)
        hidden = self.model.forward(buffers.token_B[:, None], self.kv, rows)
        self.model.logits(hidden.last[:, 0], buffers.all_logits, live=verified.live_B)


def _with_first_tokens(tokens: Tensor, after: Tensor, rows: Rows, starts: Tensor) -> tuple[Tensor, Rows]:
    """Packed rows that have one token more: each row's first token, then the token after each of its tokens. Rows
    without tokens stay empty. Returns the tokens, and their rows."""
    is_used = starts.diff() > 0
    begins = torch.zeros_like(starts)
    torch.cumsum(is_used, 0, out=begins[1:])
    begins += starts
    row_M, place_M = packed_places(begins, tokens.shape[0] + is_used.shape[0])
    index_M = (starts.index_select(0, row_M) + place_M).clamp_(max=tokens.shape[0] - 1)
    after_M = after.index_select(0, (index_M - 1).clamp_(min=0))
    tokens_M = torch.where(place_M == 0, tokens.index_select(0, index_M), after_M)
    rows = replace(
        rows, starts=begins, live=begins[-1:], width=rows.width + 1, short_width=rows.short_width + 1
    )
    return tokens_M, rows


def _check_positions(path: Path, model: Model, context: DrafterContext) -> None:
    """Warn if requests may have more positions than the draft model supports."""
    longest = context.max_seq_len
    limit = model.config.max_position_embeddings
    if limit < longest:
        warnings.warn(
            f"{path / 'config.json'}: 'max_position_embeddings' is {limit}, but requests may have {longest} positions; "
            "beyond its own a draft model's drafts are seldom right, which costs speed alone "
            f"(max_seq_len={limit} keeps requests within them)",
            stacklevel=3,
        )


def _check_tokens(path: Path, context: DrafterContext) -> None:
    """Raise `ModelError` if the tokenizer at `path` and the target's disagree on a token that both have.

    Special tokens are not compared: their names differ between models that were trained on from the same one. Warns if
    one of them has no tokenizer. A draft model inside the target's directory needs none.
    """
    if not has_tokenizer(path):
        if path.resolve().parent != context.model_path.resolve():
            _warn(path, f"{path} has no tokenizer")
        return
    ours = _target_tokens(context)
    if ours is None:
        _warn(path, "the target was given without a tokenizer")
        return
    for number, (drafted, wanted) in enumerate(zip(_read(path), ours, strict=False)):
        if drafted != wanted and drafted and wanted:
            raise ModelError(
                f"{path}: token {number} is {_shown(drafted)}, and {_shown(wanted)} to the target's tokenizer; a draft "
                "model must have the target's tokenizer"
            )


def _target_tokens(context: DrafterContext) -> Sequence[bytes] | None:
    if isinstance(context.tokenizer, Vocabulary):
        return context.tokenizer.tokens
    if context.tokenizer is not None:
        return _read(context.tokenizer)
    return _read(context.model_path) if has_tokenizer(context.model_path) else None


def _read(tokenizer: Tokenizer | Path) -> list[bytes]:
    """The tokens of a tokenizer, or of a directory's, by id. Special tokens are empty."""
    read = read_huggingface(tokenizer, None)
    return [b"" if i in read.special_ids else token for i, token in enumerate(read.tokens)]


def _shown(token: bytes) -> str:
    return repr(token.decode(errors="backslashreplace")[:40])


def _warn(path: Path, why: str) -> None:
    warnings.warn(
        f"it could not be checked whether the draft model in {path} numbers its tokens as the target does: {why}. "
        "If it does not, its drafts are refused, which costs speed alone",
        stacklevel=5,
    )
