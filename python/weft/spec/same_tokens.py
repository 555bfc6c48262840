"""Whether a draft model numbers its tokens as its target does."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from weft.errors import ModelError
from weft.grammar.vocabulary.hugging_face import read_huggingface
from weft.grammar.vocabulary.tokenizer import Vocabulary
from weft.spec.base import DrafterContext
from weft.tokenizer.files import has_tokenizer, load_tokenizer


def check_tokens(path: Path, context: DrafterContext, vocab_size: int) -> None:
    """Raise `ModelError` where the tokenizer of the draft model at `path` gives a token below `vocab_size` another id
    than the target's does. Where one of the two has no tokenizer, warn that this could not be checked; but a draft
    inside the target's directory is that target's.
    """
    if not has_tokenizer(path):
        if path.resolve().parent != context.model_path.resolve():
            _warn(path, f"{path} has no tokenizer")
        return
    ours = _target_tokens(context)
    if ours is None:
        _warn(path, "the target was given without a tokenizer")
        return
    theirs = _read(path)
    for number in range(vocab_size):
        own, wanted = _at(theirs, number), _at(ours, number)
        if own != wanted and not (isinstance(context.tokenizer, Vocabulary) and b"" in (own, wanted)):
            raise ModelError(
                f"{path}: token {number} is {_shown(own)}, and {_shown(wanted)} to the target's tokenizer; a draft "
                "model must have the target's tokenizer"
            )


def _target_tokens(context: DrafterContext) -> Sequence[bytes] | None:
    if isinstance(context.tokenizer, Vocabulary):
        return context.tokenizer.tokens  # of special tokens it does not keep the text
    if context.tokenizer is not None:
        return read_huggingface(context.tokenizer, None).tokens
    return _read(context.model_path) if has_tokenizer(context.model_path) else None


def _read(path: Path) -> list[bytes]:
    fast = (path / "tokenizer.json").is_file()
    return read_huggingface(path if fast else load_tokenizer(path), None).tokens


def _at(tokens: Sequence[bytes], number: int) -> bytes:
    return tokens[number] if number < len(tokens) else b""


def _shown(token: bytes) -> str:
    return repr(token.decode(errors="backslashreplace")[:40])


def _warn(path: Path, why: str) -> None:
    warnings.warn(
        f"it could not be checked whether the draft model in {path} numbers its tokens as the target does: {why}. "
        "If it does not, its drafts are refused, which costs speed alone",
        stacklevel=5,
    )
