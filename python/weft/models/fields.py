"""Typed access to the keys of config.json, and the error for values that weft does not implement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from weft.errors import ModelError


class UnsupportedConfig(ModelError):
    """Raised for a valid value that weft's own modules do not implement. Another way to run the model may."""


T = TypeVar("T")

LARGEST = 2**31 - 1
"""The largest integer that a config may contain."""


class Fields:
    """Typed access to a config's keys. `where` names the file in errors."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def error(self, key: str, message: str) -> ModelError:
        return ModelError(f"{self.where}: {key!r} {message}")

    def integer(self, key: str, default: int | None = None, least: int = 1) -> int:
        """The value of `key`, an integer from `least` (0 or 1) to `LARGEST`. Raises `ModelError` for another value, or
        if the key is missing and there is no default."""
        expected = "a positive integer" if least else "0 or a positive integer"
        value = self.data.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, f"is missing; it must be {expected}")
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= LARGEST:
            raise self.error(key, f"is {repr(value)[:40]}; it must be {expected} up to {LARGEST}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The value of `key`, a positive number. Raises `ModelError` for another value, or if the key is missing and
        there is no default."""
        value = self.data.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(key, "is missing; it must be a positive number")
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise self.error(key, f"is {value!r}; it must be a positive number")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.data.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}; it must be true or false")
        return value

    def layer_kinds(self, key: str, *kinds: T) -> list[T] | None:
        """The value of `key`, a list of one of `kinds` for each layer; None if the key is missing. Raises `ModelError`
        for another value."""
        value, num_layers = self.data.get(key), self.integer("num_hidden_layers")
        if value is None:
            return None
        if (
            not isinstance(value, list)
            or len(value) != num_layers
            or any(kind not in kinds for kind in value)
        ):
            named = ", ".join(map(str, kinds))
            raise self.error(
                key, f"is {value!r}; it must name one of {named} for each of the {num_layers} layers"
            )
        return value

    def must_be(self, key: str, *allowed: Any) -> None:
        """Raise `UnsupportedConfig` for a value that weft does not implement. A missing or null key is allowed."""
        value = self.data.get(key)
        if value is not None and value not in allowed:
            expected = " or ".join(map(repr, allowed)) or "models without it"
            raise self.unsupported(key, f"is {value!r}; weft runs {expected}")

    def unsupported(self, key: str, message: str) -> UnsupportedConfig:
        return UnsupportedConfig(f"{self.where}: {key!r} {message}")
