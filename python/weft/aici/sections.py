"""Parses the sections of an untrusted WebAssembly module. A count larger than the number of remaining bytes is an
error, so a small module can't cause a large allocation."""

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
    """A cursor over `data[at:end]`. Its methods raise `GuideError` if the data ends early."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    @property
    def is_done(self) -> bool:
        return self.at >= self.end

    def byte(self) -> int:
        """Read one byte."""
        if self.at >= self.end:
            raise GuideError("the WASM module is cut short, or no WASM module")
        self.at += 1
        return self.data[self.at - 1]

    def take(self, count: int) -> bytes:
        """Read the next `count` bytes."""
        if count > self.end - self.at:
            raise GuideError("the WASM module is cut short, or no WASM module")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, max_bytes: int = 5) -> int:
        """Read an unsigned LEB128 number of at most `max_bytes` bytes."""
        value = 0
        for shift in range(0, 7 * max_bytes, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise GuideError("the WASM module holds a number that is too long")

    def name(self) -> str:
        """Read a UTF-8 string, which is preceded by its length."""
        try:
            return self.take(self.number()).decode()
        except UnicodeDecodeError:
            raise GuideError("the WASM module holds a name that is not UTF-8") from None

    def count(self) -> int:
        """Read the number of items that follow. Each item takes at least a byte, so a larger number is an error."""
        count = self.number()
        if count > self.end - self.at:
            raise GuideError("the WASM module is cut short, or no WASM module")
        return count

    def vector(self, read: Callable[[Reader], T]) -> list[T]:
        """Read a vector: the number of items, then each item by `read`."""
        return [read(self) for _ in range(self.count())]


@dataclass(frozen=True)
class Section:
    """A section's kind, and the range of its content in the module's bytes."""

    kind: int
    start: int
    end: int


def sections(wasm: bytes) -> list[Section]:
    """Parse the sections of a module. Raises `GuideError` if it is not a module, is cut short, or has a section
    twice."""
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
    """Encode a number as unsigned LEB128."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
