"""Guides for weft-tiny that use the example program for digits, unchanged or changed."""

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
    """Tokenize a text for weft-tiny."""
    from tokenizers import Tokenizer

    return list(
        Tokenizer.from_file(str(package_model_path() / "tokenizer.json"))
        .encode(text, add_special_tokens=False)
        .ids
    )


def forced() -> Guide:
    """A guide that writes "Nr. " without sampling, then four digits."""
    return Guide.wasm(forcing(tokens_of("Nr. ")), str(4 + len("Nr. ")), trusted=True)


def spliced() -> Guide:
    """A guide for seven digits that writes two zeros after each 8 and 6, without sampling."""
    when = [token for digit in "86" for token in tokens_of(digit)]
    return Guide.wasm(splicing(when, 0, tokens_of("0") * 2), "9", trusted=True)


def later(body: str) -> Guide:
    """A guide for six digits that runs `body` before the fourth."""
    condition = f"(if (i32.eq (global.get $left) (i32.const 3)) (then {body}))"
    program = changed("(call $take_tokens)\n", f"(call $take_tokens) {condition}\n")
    return Guide.wasm(program.encode(), "6", trusted=True)


def taken_back() -> list[int]:
    """The tokens that `replacing` removes: even digits above 0."""
    return [token for digit in "2468" for token in tokens_of(digit)]


def replacing(tokens: list[int]) -> Guide:
    """A guide for digits that replaces each token of `taken_back` by `tokens`."""
    return Guide.wasm(splicing(taken_back(), 1, tokens), str(PLACES), trusted=True)


@cache
def zeros() -> list[int]:
    return tokens_of("0") * 2
