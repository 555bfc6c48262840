"""Pre-tokenizers, which split text before BPE merges. GGUF has only their names, tokenizer.json has all their
settings."""

from __future__ import annotations

from typing import Any

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}

SPLITTING: dict[str, dict[str, Any]] = {
    "gpt-2": _BYTES,
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTES]},
}
"""The `pre_tokenizer` of tokenizer.json for each value of GGUF's `tokenizer.ggml.pre`."""


def splitting_name(pre_tokenizer: Any) -> str | None:
    """GGUF's name of a `pre_tokenizer` from tokenizer.json; None if it is not in `SPLITTING`."""
    return next((name for name, spelled in SPLITTING.items() if spelled == pre_tokenizer), None)
