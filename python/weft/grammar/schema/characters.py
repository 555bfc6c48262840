"""Sets of characters as inclusive ranges, and how to write them in patterns."""

from __future__ import annotations

import functools
from collections.abc import Iterable

MAX_CODE = 0x10FFFF

Range = tuple[int, int]
Ranges = list[Range]
DIGITS = [(0x30, 0x39)]
WORDS = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
ASCII_SPACES = [(0x09, 0x0D), (0x20, 0x20)]
SPACES = [*ASCII_SPACES, (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F)]
SPACES += [(0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]


def outside(ranges: Iterable[Range]) -> Ranges:
    """The complement of `ranges`, sorted and merged."""
    gaps, begin = [], 0
    for low, high in sorted(ranges):
        if low > begin:
            gaps.append((begin, low - 1))
        begin = max(begin, high + 1)
    if begin <= MAX_CODE:
        gaps.append((begin, MAX_CODE))
    return gaps


def spelled(ranges: Iterable[Range]) -> str:
    """Write a set of characters as a character class."""
    return _spelled(tuple(ranges))


@functools.lru_cache(maxsize=4096)
def _spelled(ranges: tuple[Range, ...]) -> str:
    complement = outside(ranges)
    joined = outside(complement)
    if not complement:
        return r"[\s\S]"
    is_negated = joined[-1][1] == MAX_CODE
    return f"[{'^' if is_negated else ''}{''.join(map(_range, complement if is_negated else joined))}]"


def _range(ends: tuple[int, int]) -> str:
    low, high = ends
    return in_class(chr(low)) if low == high else f"{in_class(chr(low))}-{in_class(chr(high))}"


def in_class(char: str) -> str:
    """Write a character as a member of a class, escaped if needed."""
    return f"\\{char}" if char in r"\^]-[&~" else shown(char)


def shown(char: str) -> str:
    """Write a character in a pattern. Only characters of Latin-1 that are not printable are escaped."""
    return char if char.isprintable() else f"\\x{ord(char):02x}" if ord(char) < 256 else char
