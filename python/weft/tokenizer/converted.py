"""Loads tokenizers of directories without a tokenizer.json: transformers converts their files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from weft.errors import TokenizerError
from weft.tokenizer.tokenizer import Tokenizer

NEEDED = {"sentencepiece": "sentencepiece", "google.protobuf": "protobuf"}
"""Modules that transformers needs to read a tokenizer.model of SentencePiece, and their packages on PyPI."""


def convert(path: Path) -> Tokenizer:
    """Convert the tokenizer of a directory. Raises `TokenizerError`; the message names packages that are missing."""
    missing = [package for module, package in NEEDED.items() if not _is_there(module)]
    if missing and _is_sentencepiece(path / "tokenizer.model"):
        raise TokenizerError(
            f"{path}: tokenizer.model is SentencePiece's, and there is no tokenizer.json; to convert it, "
            f"pip install {' '.join(missing)}"
        )
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        # By default, transformers asks on the terminal whether it may run code from the directory.
        found = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise TokenizerError(f"{path}: transformers can't load the tokenizer: {error}") from error
    if not isinstance(found, PreTrainedTokenizerFast):
        raise TokenizerError(f"{path}: the tokenizer is not a fast one; save it with a tokenizer.json")
    return Tokenizer(
        found.backend_tokenizer,
        found.special_tokens_map,
        [str(token) for token in found.extra_special_tokens],
        found.chat_template,
    )


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _is_sentencepiece(file: Path) -> bool:
    """Whether a tokenizer.model is SentencePiece's protocol buffer, not tiktoken's lines of base64 and ranks."""
    if not file.is_file():
        return False
    # The protocol buffer begins with the tag of its first field, 0x0A.
    with file.open("rb") as stream:
        return stream.read(1) == b"\n"
