"""Reads a GGUF file's header, and checks that the file is complete: all lengths stay within the file, and the weights
fill the rest of the file without gaps.

Nothing in a file is trusted: with a damaged length, a reader would walk through gigabytes, or take the wrong bytes for
weights. Lists stay in the file until they are asked for, so that a vocabulary costs little.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from weft.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
TEXT, ARRAY, UINT32 = 8, 9, 4
FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The form of a value in `struct`, by the number of its type in GGUF."""
MAX_DIMS = 4
MAX_NAMES = 1 << 20
"""The largest number of keys, and of tensors. A mixture of experts has some thousand tensors."""
MAX_VALUES = 1 << 24
"""The largest number of values in a list. Large vocabularies have some 300,000 tokens, and as many merges."""
ALIGNMENT = "general.alignment"

Value = int | float | bool | str
Values = list[int] | list[float] | list[bool] | list[str]


class Kind(NamedTuple):
    """How a tensor's numbers are stored: blocks of `inputs` numbers in `num_bytes` bytes."""

    name: str
    inputs: int
    num_bytes: int


UNKNOWN_KINDS = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Types that GGUF has no more, by their numbers."""
KINDS = {
    0: Kind("F32", 1, 4),
    1: Kind("F16", 1, 2),
    2: Kind("Q4_0", 32, 18),
    3: Kind("Q4_1", 32, 20),
    6: Kind("Q5_0", 32, 22),
    7: Kind("Q5_1", 32, 24),
    8: Kind("Q8_0", 32, 34),
    9: Kind("Q8_1", 32, 40),
    10: Kind("Q2_K", 256, 84),
    11: Kind("Q3_K", 256, 110),
    12: Kind("Q4_K", 256, 144),
    13: Kind("Q5_K", 256, 176),
    14: Kind("Q6_K", 256, 210),
    15: Kind("Q8_K", 256, 292),
    16: Kind("IQ2_XXS", 256, 66),
    17: Kind("IQ2_XS", 256, 74),
    18: Kind("IQ3_XXS", 256, 98),
    19: Kind("IQ1_S", 256, 50),
    20: Kind("IQ4_NL", 32, 18),
    21: Kind("IQ3_S", 256, 110),
    22: Kind("IQ2_S", 256, 82),
    23: Kind("IQ4_XS", 256, 136),
    24: Kind("I8", 1, 1),
    25: Kind("I16", 1, 2),
    26: Kind("I32", 1, 4),
    27: Kind("I64", 1, 8),
    28: Kind("F64", 1, 8),
    29: Kind("IQ1_M", 256, 56),
    30: Kind("BF16", 1, 2),
    34: Kind("TQ1_0", 256, 54),
    35: Kind("TQ2_0", 256, 66),
    39: Kind("MXFP4", 32, 17),
    40: Kind("NVFP4", 64, 36),
    41: Kind("Q1_0", 128, 18),
}
"""The kinds of tensors, by their numbers in GGUF."""


@dataclass(frozen=True)
class Entry:
    """A tensor in a file. Its shape has the row's length last. `begin` and `end` are places in the file."""

    file: Path
    name: str
    kind: Kind
    shape: tuple[int, ...]
    begin: int
    end: int


class Listed(NamedTuple):
    """A list in a file: the type of its values, their number, and where they begin."""

    kind: int
    length: int
    begin: int


@dataclass(frozen=True)
class Header:
    """A file's metadata by key, and its tensors by name. Lists are `Listed`; `values` reads them."""

    file: Path
    metadata: Mapping[str, Value | Listed]
    tensors: Mapping[str, Entry]

    def values(self, key: str) -> Values:
        """The values of a list. Raises `ModelError` if the file can't be read, or for a text that is no UTF-8."""
        listed = self.metadata[key]
        assert isinstance(listed, Listed)
        try:
            with (
                self.file.open("rb") as opened,
                mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                if listed.kind != TEXT:
                    return list(
                        struct.unpack_from(f"<{listed.length}{FORMS[listed.kind]}", data, listed.begin)
                    )
                return [_decoded(self.file, key, text) for text in _texts(data, listed)]
        except (OSError, ValueError, struct.error) as error:
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"{self.file}: can't be read: {error}") from error

    def floats(self, name: str) -> list[float]:
        """The numbers of a small tensor of type F32. Raises `ModelError` for another type, or if the file can't be
        read."""
        entry = self.tensors[name]
        if entry.kind.name != "F32":
            raise ModelError(f"{entry.file}: tensor {name!r} is {entry.kind.name}; it must be F32")
        try:
            with entry.file.open("rb") as opened:
                opened.seek(entry.begin)
                data = opened.read(entry.end - entry.begin)
            return list(struct.unpack(f"<{math.prod(entry.shape)}f", data))
        except (OSError, struct.error) as error:
            raise ModelError(f"{entry.file}: can't be read: {error}") from error


def read_header(file: Path) -> Header:
    """Read the header of a file. Raises `ModelError` if the file can't be read, or if lengths or offsets don't fit
    it."""
    try:
        found = file.stat()
        return _read(file, found.st_size, found.st_mtime_ns)
    except OSError as error:
        raise ModelError(f"{file}: can't be read: {error.strerror or error}") from error


@lru_cache(maxsize=64)
def _read(file: Path, size: int, mtime_ns: int) -> Header:
    """The header of a file of this size and time. A model's config and its weights read the same one, or that of each
    part."""
    with file.open("rb") as opened:
        if size < 24:
            raise ModelError(f"{file}: can't be read as GGUF: it has {size} bytes, and is cut short")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(file, data).read()


def _decoded(file: Path, key: str, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{file}: {key!r} holds a text that is no UTF-8: {error.reason}") from None


def _texts(data: mmap.mmap, listed: Listed) -> list[bytes]:
    at, found = listed.begin, []
    for _ in range(listed.length):
        (length,) = struct.unpack_from("<Q", data, at)
        found.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return found


class _Reader:
    """Reads and checks a file's header from its beginning. `at` is the number of bytes read so far."""

    def __init__(self, file: Path, data: mmap.mmap) -> None:
        self._file, self._data, self._size = file, data, len(data)
        self._alignment = 32
        self.at = 0

    def read(self) -> Header:
        if self._take(4) != MAGIC:
            raise self._damaged("it does not begin with GGUF")
        version = self._number(4)
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in VERSIONS:
                raise ModelError(f"{self._file}: is a big-endian GGUF file; weft reads little-endian ones")
            raise ModelError(
                f"{self._file}: is of GGUF's version {version}; weft reads versions 2 and 3: convert the model again"
            )
        num_tensors, num_keys = self._number(8), self._number(8)
        for count, what in ((num_tensors, "tensors"), (num_keys, "keys")):
            if count > MAX_NAMES:
                raise self._damaged(f"it lists {count} {what}")
        metadata: dict[str, Value | Listed] = {}
        for _ in range(num_keys):
            key, value = self._pair()
            if key in metadata:
                raise self._damaged(f"it has the key {key!r} twice")
            metadata[key] = value
        listed = [self._tensor() for _ in range(num_tensors)]
        return Header(self._file, metadata, self._entries(listed))

    def _pair(self) -> tuple[str, Value | Listed]:
        """Read a key and its value. Texts of a list are skipped."""
        key = self._text("a key")
        kind = self._number(4)
        if kind == TEXT:
            return key, self._text(key)
        if kind == ARRAY:
            of, count = self._number(4), self._number(8)
            if count > MAX_VALUES:  # which leads through all weights, or makes as many objects
                raise self._damaged(f"the list {key[:80]!r} has {count} values")
            begin = self.at
            if of == TEXT:
                self._skip_texts(count)
            else:
                self._skip(count * struct.calcsize(self._form(of, key)))
            return key, Listed(of, count, begin)
        value: Value = self._value(self._form(kind, key))
        if key == ALIGNMENT:
            is_power = kind == UINT32 and isinstance(value, int) and value > 0 and value & (value - 1) == 0
            if not is_power:
                raise self._damaged(f"its {ALIGNMENT} is no power of two")
            self._alignment = int(value)
        return key, value

    def _form(self, kind: int, key: str) -> str:
        if kind not in FORMS:
            raise self._damaged(f"the type of {key[:80]!r} is {kind}")
        return FORMS[kind]

    def _tensor(self) -> tuple[str, Kind, tuple[int, ...], int]:
        """Read a tensor's entry: its name, kind, shape, and the offset of its weights."""
        name = self._text("a tensor's name")
        num_dims = self._number(4)
        if num_dims > MAX_DIMS:
            raise self._damaged(f"tensor {name!r} has {num_dims} dimensions")
        dims = [self._number(8) for _ in range(num_dims)]
        number, offset = self._number(4), self._number(8)
        kind = KINDS.get(number)
        if number in UNKNOWN_KINDS:
            raise ModelError(
                f"{self._file}: tensor {name!r} is quantised with {UNKNOWN_KINDS[number]}; use a file in Q4_K_M, "
                "Q5_K_M, Q6_K or Q8_0"
            )
        if kind is None:
            raise self._damaged(f"tensor {name!r} has {math.prod(dims)} numbers of type {number}")
        if not all(dims):
            raise self._damaged(f"tensor {name!r} has the shape {dims[::-1]}")
        if (dims[0] if dims else 1) % kind.inputs:
            raise self._damaged(
                f"tensor {name!r} has rows of {dims[0] if dims else 1} numbers, which are no blocks of {kind.name}"
            )
        return name, kind, tuple(reversed(dims)), offset

    def _entries(self, listed: list[tuple[str, Kind, tuple[int, ...], int]]) -> dict[str, Entry]:
        """The tensors with their places. Raises `ModelError` unless the weights follow each other without gaps, apart
        from alignment, and fill the rest of the file."""
        start = self._padded(self.at)
        room = self._size - start
        end = padded_end = 0
        entries: dict[str, Entry] = {}
        for name, kind, shape, begin in listed:
            if begin != padded_end:
                raise self._damaged(f"tensor {name!r} begins at {begin}; those before it end at {padded_end}")
            if name in entries:
                raise self._damaged(f"it has the tensor {name!r} twice")
            end = begin + math.prod(shape) // kind.inputs * kind.num_bytes
            entries[name] = Entry(self._file, name, kind, shape, start + begin, start + end)
            padded_end = self._padded(end)
        if max(room, 0) < end:
            last = next(entry.name for entry in entries.values() if entry.end > self._size)
            raise self._damaged(
                f"its tensors have {end} bytes, but {max(room, 0)} are there: it is cut short in or before tensor "
                f"{last!r}"
            )
        if room > padded_end:
            raise self._damaged(
                f"its tensors have {padded_end} bytes, but {room} are there: it holds more than it lists"
            )
        return entries

    def _padded(self, size: int) -> int:
        return -(-size // self._alignment) * self._alignment

    def _text(self, key: str) -> str:
        return _decoded(self._file, key, self._take(self._number(8)))

    def _skip_texts(self, count: int) -> None:
        """Skip the texts of a list."""
        read, data, size, at = struct.Struct("<Q").unpack_from, self._data, self._size, self.at
        for _ in range(count):
            if at + 8 > size:
                raise self._short(8)
            at += 8 + read(data, at)[0]
        if at > size:
            raise self._short(at - self.at)
        self.at = at

    def _number(self, size: int) -> int:
        return int(self._value({4: "I", 8: "Q"}[size]))

    def _value(self, form: str) -> Value:
        at = self.at
        self._skip(struct.calcsize(form))
        (value,) = struct.unpack_from("<" + form, self._data, at)
        found: Value = value
        return found

    def _take(self, size: int) -> bytes:
        at = self.at
        self._skip(size)
        return self._data[at : self.at]

    def _skip(self, size: int) -> None:
        if self.at + size > self._size:
            raise self._short(size)
        self.at += size

    def _short(self, size: int) -> ModelError:
        return self._damaged(
            f"it ends at {self._size} bytes, within something of {size}: it is cut short, or a length in it is wrong"
        )

    def _damaged(self, how: str) -> ModelError:
        return ModelError(f"{self._file}: can't be read as GGUF, or is damaged: {how}; get it again")
