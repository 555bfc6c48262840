"""Characters as sequences of byte ranges, against Python's own encoding."""

from __future__ import annotations

import itertools
import random

import pytest

from weft.grammar.schema.characters import MAX_CODE, outside
from weft.grammar.xgrammar.rules import byte_set, utf8_sequences

BOUNDS = [
    0,
    1,
    0x7F,
    0x80,
    0x7FF,
    0x800,
    0xFFF,
    0x1000,
    0xD7FF,
    0xE000,
    0xFFFF,
    0x10000,
    0xFFFFF,
    MAX_CODE,
]


def encodes(low: int, high: int, text: bytes) -> bool:
    return any(
        len(sequence) == len(text)
        and all(a <= byte <= b for (a, b), byte in zip(sequence, text, strict=True))
        for sequence in utf8_sequences(low, high)
    )


@pytest.mark.parametrize(("low", "high"), list(itertools.combinations_with_replacement(BOUNDS, 2))[::3])
def test_they_hold_what_is_between_and_nothing_else(low: int, high: int) -> None:
    near = {c + d for c in (*BOUNDS, low, high, (low + high) // 2) for d in (-65, -64, -1, 0, 1, 63, 64)}
    for code_point in near:
        if 0 <= code_point <= MAX_CODE and not 0xD800 <= code_point < 0xE000:
            assert encodes(low, high, chr(code_point).encode()) == (low <= code_point <= high), hex(
                code_point
            )


def test_random_ranges() -> None:
    rng = random.Random(4)
    for _ in range(200):
        low, high = sorted(rng.choices(range(0xD800), k=2))
        for code_point in (low, high, *rng.choices(range(0xD800), k=4)):
            assert encodes(low, high, chr(code_point).encode()) == (low <= code_point <= high)


def test_the_rest_is_outside() -> None:
    assert outside([]) == [(0, MAX_CODE)]
    assert outside([(5, 9), (0, 2), (7, 12)]) == [(3, 4), (13, MAX_CODE)]
    assert outside([(0, MAX_CODE)]) == []


def test_a_set_of_bytes_has_the_lowest_first() -> None:
    assert byte_set([(0, 0), (9, 9), (248, 255)]) == bytes([1, 2, *[0] * 29, 255])
