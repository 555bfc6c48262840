"""Checks that a GGUF file is complete: all lengths stay within the file, and the weights fill the rest of the file
without gaps.

The package `gguf` trusts every length in a file. With a damaged length it walks through gigabytes, or reads the wrong
bytes as weights. So weft checks the lengths first. The check's time grows with the number of strings.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path

from weft.errors import ModelError

MAGIC = b"GGUF"
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""The size of a value in bytes, by the number of its type in GGUF."""
TEXT, ARRAY, UINT32 = 8, 9, 4
MAX_DIMS = 4
ALIGNMENT = "general.alignment"


def check_layout(file: Path) -> None:
    """Raise `ModelError` if lengths or offsets don't fit the file, and `OSError` if the file can't be read."""
    with file.open("rb") as opened:
        size = opened.seek(0, 2)
        if size < 24:
            raise ModelError(f"{file}: can't be read as GGUF: it has {size} bytes, and is cut short")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Layout(file, data).check()


class _Layout:
    """Reads and checks a file's header from its beginning. `at` is the number of bytes read so far."""

    def __init__(self, file: Path, data: mmap.mmap) -> None:
        self._file, self._data = file, data
        self._order = "<"
        self._alignment = 32
        self.at = 0

    def check(self) -> None:
        if self._take(4) != MAGIC:
            raise self._damaged("it does not begin with GGUF")
        if self._data[4:6] == b"\0\0":  # the version's low bytes are 0 in a big-endian file
            self._order = ">"
        self._number(4)
        num_tensors, num_keys = self._number(8), self._number(8)
        for _ in range(num_keys):
            self._pair()
        ends = [self._tensor() for _ in range(num_tensors)]
        self._check_weights(ends)

    def _pair(self) -> None:
        """Skip a key and its value."""
        key, kind = self._text(), self._number(4)
        if key == ALIGNMENT.encode():
            self._alignment = self._number(4) if kind == UINT32 else 0
            if self._alignment < 1 or self._alignment & (self._alignment - 1):
                raise self._damaged(f"its {ALIGNMENT} is no power of two")
        elif kind == TEXT:
            self._text()
        elif kind == ARRAY:
            of, count = self._number(4), self._number(8)
            if of == TEXT:
                for _ in range(count):
                    self._text()
            else:
                self._take(count * self._size_of(of, key))
        else:
            self._take(self._size_of(kind, key))

    def _size_of(self, kind: int, key: bytes) -> int:
        if kind not in SIZES:
            raise self._damaged(f"the type of {key[:80].decode(errors='replace')!r} is {kind}")
        return SIZES[kind]

    def _tensor(self) -> tuple[str, int, int]:
        """Read a tensor's entry: its name, the offset of its weights, and their size in bytes."""
        name = self._text()[:80].decode(errors="replace")
        dims = self._number(4)
        if dims > MAX_DIMS:
            raise self._damaged(f"tensor {name!r} has {dims} dimensions")
        count = math.prod(self._number(8) for _ in range(dims))
        kind, begin = self._number(4), self._number(8)
        import gguf

        sizes = {int(known): size for known, size in gguf.GGML_QUANT_SIZES.items()}
        if kind not in sizes or count % sizes[kind][0]:
            raise self._damaged(f"tensor {name!r} has {count} numbers of type {kind}")
        return name, begin, count // sizes[kind][0] * sizes[kind][1]

    def _check_weights(self, tensors: list[tuple[str, int, int]]) -> None:
        """Raise `ModelError` unless the weights follow each other without gaps, apart from alignment, and fill the rest
        of the file."""
        room = len(self._data) - self._padded(self.at)
        end = padded_end = 0
        for name, begin, size in tensors:
            if begin != padded_end:
                raise self._damaged(f"tensor {name!r} begins at {begin}; those before it end at {padded_end}")
            end = begin + size
            padded_end = self._padded(end)
        if room < end:
            raise self._damaged(
                f"its tensors have {end} bytes, but {max(room, 0)} are there: it is cut short"
            )
        if room > padded_end:
            raise self._damaged(
                f"its tensors have {padded_end} bytes, but {room} are there: it holds more than it lists"
            )

    def _padded(self, size: int) -> int:
        return -(-size // self._alignment) * self._alignment

    def _text(self) -> bytes:
        return self._take(self._number(8))

    def _number(self, size: int) -> int:
        (number,) = struct.unpack(self._order + {4: "I", 8: "Q"}[size], self._take(size))
        return int(number)

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._data):
            raise self._damaged(
                f"it ends at {len(self._data)} bytes, within something of {size}: it is cut short, or a length in it "
                "is wrong"
            )
        taken = self._data[self.at : end]
        self.at = end
        return taken

    def _damaged(self, how: str) -> ModelError:
        return ModelError(f"{self._file}: can't be read as GGUF, or is damaged: {how}; get it again")
