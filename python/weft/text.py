"""Text and tokens: the tokenizer of a model directory, and how a streamed piece is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from weft.core import Piece
from weft.errors import TokenizerError


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a Hugging Face directory, loaded without code of its own and without a network."""
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tekken.json")):
        raise TokenizerError(
            f"{path}: no tokenizer.json (nor tokenizer.model, tekken.json); copy the tokenizer there"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except Exception as error:
        raise TokenizerError(f"{path}: transformers can't load the tokenizer: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise TokenizerError(f"{path}: the tokenizer is not a fast one; save it with a tokenizer.json")
    return tokenizer


def coloured(tokenizer: Any, piece: Piece) -> Text:
    """The piece with its drafted-and-accepted part in another colour; plain where tokens split a character."""
    drafted = [t for t, d in zip(piece.token_ids, piece.drafted, strict=True) if d]
    head = tokenizer.decode(drafted, skip_special_tokens=True)
    if not piece.text.startswith(head):
        return Text(piece.text)
    return Text.assemble((head, "green"), piece.text[len(head) :])
