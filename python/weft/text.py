"""Text and tokens: the tokenizer of a model directory."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerFast

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
