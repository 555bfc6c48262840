"""What the rewriting works on: schemas as nodes, which mean the same in every draft.

A node is true, false, or a dict of keywords as draft 2020-12 has them, with these differences: `$ref` holds the node
that it leads to (a text where it leads nowhere), `type` is a tuple, `const` is an `enum` of one, `contains` holds its
schema, least and most; what only describes is left out. `DERIVED` marks objects that the rewriting made up, which name
no properties in the sense of `open_objects`. A node is told from others by its identity.
"""

from __future__ import annotations

import functools
import json
from typing import Any

Node = dict[str, Any] | bool

DERIVED = "derived"
DENIED = "denied"  # a node that must not hold, and that can't be said in other words
FRACTION = "fraction"  # a number that is no integer

TYPES = ("null", "boolean", "number", "string", "array", "object")
OF_TYPE = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", FRACTION),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("prefixItems", "items", "minItems", "maxItems", "uniqueItems", "contains"),
    "object": (
        "properties",
        "patternProperties",
        "additionalProperties",
        "required",
        "minProperties",
        "maxProperties",
        "propertyNames",
        "dependentRequired",
        "dependentSchemas",
    ),
}
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")


class TooMuch(Exception):
    """A schema that is not to be rewritten: it would grow too far, or is not understood."""


def others(*types: str) -> tuple[str, ...]:
    """All types but some."""
    return tuple(name for name in TYPES if name not in types)


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
