"""Typed access to a GGUF file's metadata."""

from __future__ import annotations

from typing import Any, TypeVar

from weft.errors import ModelError
from weft.models.gguf.header import Header, Listed

T = TypeVar("T")


class Metadata:
    """The metadata of a GGUF file. For a value of another type, or a required key that is missing, methods raise
    `ModelError` with the file's name. `architecture` is the first word of keys of sizes, as in "llama.block_count"."""

    def __init__(self, header: Header) -> None:
        self._header = header
        self.where = header.file
        self.architecture = self.need("general.architecture", str)

    def __contains__(self, key: str) -> bool:
        return key in self._header.metadata

    def get(self, key: str, kind: type[T], default: Any = None) -> Any:
        """The value of a key, of type `kind`, or the default. An integer is accepted as a float."""
        value = self._header.metadata.get(key)
        return default if value is None else self._checked(key, value, kind)

    def need(self, key: str, kind: type[T]) -> T:
        """The value of a required key."""
        found: T | None = self.get(key, kind)
        if found is None:
            raise ModelError(f"{self.where}: has no {key!r}")
        return found

    def listed(self, key: str, kind: type[T]) -> list[T]:
        """The values of a required list, all of type `kind`."""
        if not isinstance(self._header.metadata.get(key), Listed):
            found = self.need(key, list)  # raises, since no value is a list
            raise AssertionError(found)
        return [self._checked(key, value, kind) for value in self._header.values(key)]

    def is_listed(self, key: str) -> bool:
        """Whether the value of a key is a list."""
        return isinstance(self._header.metadata.get(key), Listed)

    def size(self, name: str, default: int | None = None) -> int:
        """A number of the architecture, by the name of its key without the architecture. A list of a number for each
        layer counts as one number if they are equal. Raises `ModelError` if they differ, or if the key is missing and
        there is no default."""
        key = f"{self.architecture}.{name}"
        if self.is_listed(key):
            values = {*self.listed(key, int)}
            if len(values) != 1:
                raise ModelError(
                    f"{self.where}: {key!r} differs between layers; weft runs layers of one size"
                )
            return values.pop()
        found: int | None = self.get(key, int, default)
        return self.need(key, int) if found is None else found

    def number(self, name: str, default: float | None = None) -> float | None:
        """A number of the architecture as `size` names it, rounded to the digits of float32; or the default."""
        found: float | None = self.get(f"{self.architecture}.{name}", float)
        return default if found is None else float(f"{found:.7g}")  # 1e-05 for 9.999999747378752e-06

    def _checked(self, key: str, value: Any, kind: type[T]) -> T:
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            named = "list" if isinstance(value, Listed) else type(value).__name__
            raise ModelError(f"{self.where}: {key!r} is of type {named}; it must be {kind.__name__}")
        return value
