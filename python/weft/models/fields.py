"""Typed access to the keys of config.json, and the error for values that weft does not implement."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from weft.errors import ModelError


class UnsupportedConfig(ModelError):
    """Raised for a valid value that weft's own modules do not implement. Another way to run the model may."""


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

    def must_be(self, key: str, *allowed: Any) -> None:
        """Raise `UnsupportedConfig` for a value that weft does not implement. A missing or null key is allowed."""
        value = self.data.get(key)
        if value is not None and value not in allowed:
            expected = " or ".join(map(repr, allowed)) or "models without it"
            raise self.unsupported(key, f"is {value!r}; weft runs {expected}")

    def unsupported(self, key: str, message: str) -> UnsupportedConfig:
        return UnsupportedConfig(f"{self.where}: {key!r} {message}")
