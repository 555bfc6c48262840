"""Loads tokenizers of directories whose files only transformers can convert, such as vocab.json with merges.txt."""

from __future__ import annotations

from pathlib import Path

from weft.errors import TokenizerError
from weft.tokenizer.tokenizer import Tokenizer


def convert(path: Path) -> Tokenizer:
    """Convert the tokenizer of a directory. Raises `TokenizerError`."""
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
