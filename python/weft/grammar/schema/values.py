"""JSON values: what type they are of, and when two are equal. 1 and 1.0 are; 1 and true are not."""

from __future__ import annotations

import functools
import json
from typing import Any


def type_of(value: Any) -> str:
    """Its type, "number" for every number."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def is_integer(value: Any) -> bool:
    """Whether a number has no fraction."""
    return isinstance(value, int) or (isinstance(value, float) and value.is_integer())


def key_of(value: Any) -> str:
    """Equal for equal values."""
    return json.dumps(_plain(value), sort_keys=True)


class Values(list[Any]):
    """Listed values; `keys` are worked out once."""

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """`key_of` each."""
        return frozenset(map(key_of, self))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
