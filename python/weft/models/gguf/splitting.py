"""How tokenizers cut text before they merge bytes: GGUF has a name for each way, tokenizer.json spells it out."""

from __future__ import annotations

from typing import Any

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}

SPLITTING: dict[str, dict[str, Any]] = {
    "gpt-2": _BYTES,
    "smollm": {"type": "Sequence", "pretokenizers": [_DIGITS, _BYTES]},
}
"""GGUF's `tokenizer.ggml.pre`, and the `pre_tokenizer` of tokenizer.json."""


def splitting_name(pre_tokenizer: Any) -> str | None:
    """GGUF's name of this `pre_tokenizer`; None where there is none here."""
    return next((name for name, spelled in SPLITTING.items() if spelled == pre_tokenizer), None)
