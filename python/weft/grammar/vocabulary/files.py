"""The tokenizer of a Hugging Face directory, loaded as data: no code of the directory's own, no network."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from weft.errors import TokenizerError

FILES = ("tokenizer.json", "tokenizer.model", "tekken.json")


def has_tokenizer(path: Path) -> bool:
    """Whether a directory has one."""
    return any((path / name).is_file() for name in FILES)


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a Hugging Face directory. Code that the directory brings (`auto_map`) is never run,
    and no prompt asks whether it may be. Raises `TokenizerError`.
    """
    if not has_tokenizer(path):
        raise TokenizerError(
            f"{path}: no tokenizer.json (nor tokenizer.model, tekken.json); copy the tokenizer there"
        )
    try:
        # Left out, trust_remote_code asks on a terminal.
        tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise TokenizerError(f"{path}: transformers can't load the tokenizer: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise TokenizerError(f"{path}: the tokenizer is not a fast one; save it with a tokenizer.json")
    return tokenizer
