"""Pre-tokenizers, which split text before BPE merges. GGUF has only their names, tokenizer.json has all their
settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_END_WITH_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"

LLAMA3 = rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}|{_END}"
QWEN2 = rf"{_CONTRACTIONS}|{_BEFORE}\p{{L}}+|\p{{N}}|{_END}"
GPT4O = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_END_WITH_SLASHES}"
)
PUNCTUATION, NUMBERS, THREE_DIGITS = r"[\p{P}$+<=>^~|]+", r"\p{N}+", r"[0-9][0-9][0-9]"
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_END_WITH_SLASHES}"


@dataclass(frozen=True)
class Splitting:
    """The rules of a byte-level tokenizer that GGUF has a name for.

    pre_tokenizer, normalizer: as in tokenizer.json.
    ignore_merges: a word that is a token becomes it, whatever the merges say.
    begins: texts begin with the BOS token unless the file says otherwise.
    """

    pre_tokenizer: dict[str, Any]
    normalizer: dict[str, Any] | None = None
    ignore_merges: bool = False
    begins: bool = False


_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS = {"type": "Digits", "individual_digits": True}


def _split(*patterns: str) -> dict[str, Any]:
    """Split by each pattern in turn: what it matches, and what is between."""
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, {**_BYTES, "use_regex": False}]}


_GPT2 = Splitting(_BYTES)
_SMOLLM = Splitting({"type": "Sequence", "pretokenizers": [_DIGITS, _BYTES]})
_CL100K = Splitting(_split(LLAMA3))
_LLAMA3 = Splitting(_split(LLAMA3), ignore_merges=True, begins=True)
_GPT4O = Splitting(_split(GPT4O))

DEFAULT = "default"
"""The name that llama.cpp takes for files without one. Its rules are those of no model in particular."""
SPLITTING: dict[str, Splitting] = {
    "gpt-2": _GPT2,
    DEFAULT: Splitting(_split(PUNCTUATION, WORDS, NUMBERS, THREE_DIGITS)),
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _CL100K,
    "smaug-bpe": _CL100K,
    "qwen2": Splitting(_split(QWEN2), normalizer={"type": "NFC"}),
    "deepseek-r1-qwen": Splitting(_split(QWEN2)),
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "tekken": Splitting(_split(TEKKEN), ignore_merges=True, begins=True),
}
"""The rules for each value of GGUF's `tokenizer.ggml.pre` that weft reads."""


def splitting_name(tokenizer_json: dict[str, Any]) -> str | None:
    """GGUF's name of the rules in a tokenizer.json; None if they are not in `SPLITTING`."""
    model = tokenizer_json.get("model", {})
    rules = (
        tokenizer_json.get("pre_tokenizer"),
        tokenizer_json.get("normalizer"),
        bool(model.get("ignore_merges")),
    )
    return next(
        (
            name
            for name, each in SPLITTING.items()
            if rules == (each.pre_tokenizer, each.normalizer, each.ignore_merges)
        ),
        None,
    )
