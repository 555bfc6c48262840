"""Ranges of characters as sequences of byte sets: what a character class looks like to a reader of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft.grammar.schema.characters import MAX_CODE

_LENGTHS = ((0x7F, 1), (0x7FF, 2), (0xFFFF, 3), (MAX_CODE, 4))
"""The last character of each length in UTF-8."""

ByteRange = tuple[int, int]


def utf8_sequences(low: int, high: int) -> Iterator[list[ByteRange]]:
    """The characters `low` to `high` as sequences of byte ranges, of which each stands for all their products."""
    begin = low
    for last, length in _LENGTHS:
        if begin <= min(high, last):
            yield from _split(_encode(begin, length), _encode(min(high, last), length))
        begin = max(begin, last + 1)


def byte_set(ranges: Iterable[ByteRange]) -> bytes:
    """A set of bytes as 256 bits, the lowest first."""
    bits = 0
    for low, high in ranges:
        bits |= ((1 << (high - low + 1)) - 1) << low
    return bits.to_bytes(32, "little")


def _encode(code_point: int, length: int) -> bytes:
    # Also what is no character (surrogates): grammar libraries take their bytes.
    if length == 1:
        return bytes([code_point])
    tail = []
    for _ in range(length - 1):
        tail.append(0x80 | code_point & 0x3F)
        code_point >>= 6
    return bytes([(0xF00 >> length & 0xFF) | code_point, *reversed(tail)])


def _split(low: bytes, high: bytes) -> Iterator[list[ByteRange]]:
    """Sequences of byte ranges for all encodings of one length, from `low` to `high`."""
    if len(low) == 1:
        yield [(low[0], high[0])]
        return
    first, last = low[0], high[0]
    if first == last:
        yield from ([(first, first), *rest] for rest in _split(low[1:], high[1:]))
        return
    lowest, highest = b"\x80" * (len(low) - 1), b"\xbf" * (len(low) - 1)
    if low[1:] != lowest:
        yield from ([(first, first), *rest] for rest in _split(low[1:], highest))
        first += 1
    end = [] if high[1:] == highest else [[(last, last), *rest] for rest in _split(lowest, high[1:])]
    last -= bool(end)
    if first <= last:
        yield [(first, last), *[(0x80, 0xBF)] * (len(low) - 1)]
    yield from end
