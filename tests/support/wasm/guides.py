"""Guides for weft-tiny that are the example's program of digits, as it is or changed."""

from __future__ import annotations

from functools import cache

from support.wasm.digits import changed, forcing, splicing
from weft import Guide
from weft.config import package_model_path

PROMPT = 'Text: Call 186 48620.\nSchema: {"phone": string}\nJSON: {"phone": "'
SPIN = "(loop $spin (br $spin))"
PLACES = 12


@cache
def tokens_of(text: str) -> list[int]:
    """A text in weft-tiny's tokens."""
    from tokenizers import Tokenizer

    return list(
        Tokenizer.from_file(str(package_model_path() / "tokenizer.json"))
        .encode(text, add_special_tokens=False)
        .ids
    )


def forced() -> Guide:
    """Writes "Nr. " without being asked, then four digits."""
    return Guide.wasm(forcing(tokens_of("Nr. ")), str(4 + len("Nr. ")), trusted=True)


def spliced() -> Guide:
    """Seven digits; behind each 8 and 6 there are two zeros without asking."""
    when = [token for digit in "86" for token in tokens_of(digit)]
    return Guide.wasm(splicing(when, 0, tokens_of("0") * 2), "9", trusted=True)


def later(body: str) -> Guide:
    """Six digits, but `body` runs before the fourth."""
    condition = f"(if (i32.eq (global.get $left) (i32.const 3)) (then {body}))"
    program = changed("(call $take_tokens)\n", f"(call $take_tokens) {condition}\n")
    return Guide.wasm(program.encode(), "6", trusted=True)


def taken_back() -> list[int]:
    """Tokens that don't stay: even digits above 0."""
    return [token for digit in "2468" for token in tokens_of(digit)]


def replacing(tokens: list[int]) -> Guide:
    """Digits; in the place of each of `taken_back` come `tokens`."""
    return Guide.wasm(splicing(taken_back(), 1, tokens), str(PLACES), trusted=True)


@cache
def zeros() -> list[int]:
    return tokens_of("0") * 2
