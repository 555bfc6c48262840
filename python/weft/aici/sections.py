"""Reads the sections of an untrusted WebAssembly module. Every count is bounded by the bytes that are left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from weft.errors import GuideError

T = TypeVar("T")

HEADER = b"\0asm\1\0\0\0"
TYPE, IMPORT, FUNCTION, TABLE, MEMORY, GLOBAL, EXPORT, START, ELEMENT, CODE, DATA = range(1, 12)
CUSTOM, DATA_COUNT = 0, 12


class Reader:
    """Reads numbers and bytes of `data[at:end]`. Raises `GuideError` if it ends early."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    @property
    def is_done(self) -> bool:
        return self.at >= self.end

    def byte(self) -> int:
        """One byte."""
        if self.at >= self.end:
            raise GuideError("the WASM module is cut short, or no WASM module")
        self.at += 1
        return self.data[self.at - 1]

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > self.end - self.at:
            raise GuideError("the WASM module is cut short, or no WASM module")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, max_bytes: int = 5) -> int:
        """An unsigned LEB128 number of at most `max_bytes` bytes."""
        value = 0
        for shift in range(0, 7 * max_bytes, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise GuideError("the WASM module holds a number that is too long")

    def name(self) -> str:
        """A text, after its length."""
        try:
            return self.take(self.number()).decode()
        except UnicodeDecodeError:
            raise GuideError("the WASM module holds a name that is not UTF-8") from None

    def count(self) -> int:
        """The number of items that follow. Each takes a byte at least, so the bytes that are left bound it."""
        count = self.number()
        if count > self.end - self.at:
            raise GuideError("the WASM module is cut short, or no WASM module")
        return count

    def vector(self, read: Callable[[Reader], T]) -> list[T]:
        """The items of a vector, after their number."""
        return [read(self) for _ in range(self.count())]


@dataclass(frozen=True)
class Section:
    """The place of a section's content in the module's bytes."""

    kind: int
    start: int
    end: int


def sections(wasm: bytes) -> list[Section]:
    """The sections of a module. Raises `GuideError` if it is no module, or has a section twice."""
    if wasm[: len(HEADER)] != HEADER:
        raise GuideError(
            "the program is no WASM module of version 1 (a component is none); give a .wasm file, or .wat text"
        )
    parsed = list(_each(Reader(wasm, len(HEADER))))
    kinds = [section.kind for section in parsed if section.kind != CUSTOM]
    if len(kinds) != len(set(kinds)):
        raise GuideError("the WASM module has a section twice")
    return parsed


def _each(reader: Reader) -> Iterator[Section]:
    while not reader.is_done:
        kind, size = reader.byte(), reader.number()
        start = reader.at
        reader.take(size)
        yield Section(kind, start, reader.at)


def encoded(number: int) -> bytes:
    """A number as unsigned LEB128."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
