"""Strings of bounded length hold what JSON strings hold, counted in characters; their masks are exact."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from support.grammar.grammars import allowed
from support.grammar.kept import backend, hold, takes
from weft.grammar import CompiledGuide, Guide, Vocabulary
from weft.grammar.xgrammar.backend import XGrammarBackend
from weft.grammar.xgrammar.lengths import BLOCK, NEAR

BOUNDS: list[tuple[int, int | None]] = [
    *((0, most) for most in (1, 2, NEAR - 1, NEAR, NEAR + 1, 2 * NEAR + 1, NEAR + BLOCK, 129, 400)),
    *((least, None) for least in (1, NEAR, NEAR + 1, 300)),
    *((1, 1), (10, 97), (10, 150), (60, 100), (60, 300), (300, 300), (1, 5000), (5000, 5000)),
]
CHARACTERS = ["a", " ", "é", "語", "😀", r"\"", r"\\", r"\/", r"\n", r"\t", r"\u00e9", r"\u0000", r"\uD7ff"]


def of(least: int, most: int | None, **more: Any) -> CompiledGuide:
    bounds = {"minLength": least} | ({} if most is None else {"maxLength": most})
    return backend().libraries["xgrammar"].compile(Guide.json_schema({"type": "string", **bounds, **more}))


@pytest.mark.parametrize(("least", "most"), BOUNDS)
def test_lengths_are_counted_in_characters(least: int, most: int | None) -> None:
    rng, compiled = random.Random(least), of(least, most)
    end = most or least + 200
    near = {0, least - 1, least, least + 1, (least + end) // 2, least + BLOCK, end - 1, end, end + 1}
    for length in sorted(length for length in near if length >= 0):
        text = f'"{"".join(rng.choices(CHARACTERS, k=length))}"'
        tokens = [*(3 + byte for byte in text.encode()), 1]
        is_taken = least <= length and (most is None or length <= most)
        assert (compiled.matcher().validate(tokens[:-1]) == len(tokens) - 1) == is_taken, length


@pytest.mark.parametrize(
    "text", ['"\n"', '"\x1f"', r'"\x"', r'"\u12"', r'"\ud800"', r'"\udc00"', '"', r'"\"', '"""']
)
@pytest.mark.parametrize(("least", "most"), [(0, 3), (1, None), (1, 200)])
def test_what_is_no_json_is_refused(least: int, most: int | None, text: str) -> None:
    assert not takes(of(least, most), text)


def long_vocabulary() -> Vocabulary:
    """Tokens of many characters, of parts of escapes, and of what is beyond a string's end."""
    words = ["a" * n for n in (2, 3, 7, NEAR - 1, NEAR, NEAR + 1, BLOCK, 130)]
    words += [r"\n" * n for n in (1, 2, NEAR, NEAR + 1)] + ["é" * n for n in (1, 2, NEAR)]
    words += [
        "\\",
        "\\u",
        r"\u00",
        "00",
        "e9a",
        r"a\u",
        r'\""',
        r"\\",
        r'a"',
        '"]',
        'aa",',
        '","',
        'a", "a',
        '\\"a',
    ]
    tokens = [b"", *(bytes([byte]) for byte in range(256)), *(word.encode() for word in words)]
    return Vocabulary.from_tokens(list(dict.fromkeys(tokens)), end_ids=[0])


@pytest.mark.parametrize(
    ("least", "most"), [(0, 5), (3, None), (0, 120), (60, 70), (60, None), (1, 230), (70, 200)]
)
def test_masks_are_exact_by_each_token(least: int, most: int | None) -> None:
    vocabulary = long_vocabulary()
    bounds = {"minLength": least} | ({} if most is None else {"maxLength": most})
    schema = {"type": "array", "items": {"type": "string", **bounds}}
    compiled = XGrammarBackend(vocabulary).compile(Guide.json_schema(schema, separators=(",", ":")))
    rng, longer = random.Random(most), [i for i, token in enumerate(vocabulary.tokens) if len(token) > 1]
    for _ in range(6):
        matcher = compiled.matcher()
        for _ in range(60):
            row = np.zeros(-(-vocabulary.vocab_size // 32), dtype=np.int32)
            assert matcher.fill(row)
            masked = {token for token in allowed(row) if 0 < token < vocabulary.vocab_size}
            assert masked == {t for t in range(1, vocabulary.vocab_size) if matcher.validate([t]) == 1}
            choices = [t for t in masked if t in longer] if rng.random() < 0.5 else []
            if not masked:
                break
            assert matcher.accept(rng.choice(choices or sorted(masked)))


def test_tools_and_tags_hold_escapes() -> None:
    parameters = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "minLength": 1},
            "name": {"type": "string", "pattern": "^[^é]+$"},
        },
        "required": ["code", "name"],
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    compiled = backend().libraries["xgrammar"].compile(Guide.tools([tool], style="qwen_3", required=True))
    assert compiled.notes == ()
    for code, is_good in (('say "x"', True), ("a\nb\\", True), ("", False)):
        call = json.dumps({"name": "f", "arguments": {"code": code, "name": 'a"b\n'}}, ensure_ascii=False)
        text = f"<tool_call>\n{call}\n</tool_call>"
        tokens = [3 + byte for byte in text.encode()]
        assert (compiled.matcher().validate(tokens) == len(tokens)) == is_good, code


def test_names_of_bounded_length_hold_escapes() -> None:
    schema = {"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": {"type": "null"}}
    good = [r'{"\"\n": null}', '{"é😀": null}']
    assert hold(schema, good, [r'{"\"\n\t": null}', '{"\n": null}', '{""": null}']) == 1


def test_answers_that_close_hold_escapes() -> None:
    guide = Guide.json_schema({"type": "string", "minLength": 2, "maxLength": 300})
    compiled: Any = backend().libraries["xgrammar"].compile(guide)
    assert compiled.closing() is not None
