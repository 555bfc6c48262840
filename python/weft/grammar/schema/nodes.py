"""Nodes, the intermediate form of schemas for rewriting, and helpers for JSON values.

A node is true, false, or a dict of keywords, with the same meaning for every draft. The keywords are those of draft
2020-12, with these differences:

- `$ref` holds the target node itself, or the reference as a string if it is dangling.
- `type` is a tuple; `const` is an `enum` of one value.
- `contains` is a tuple of its schema, `minContains` and `maxContains`.
- Annotations are dropped.
- `DERIVED` marks nodes that the rewriting made. The properties that they list do not close an object
  (`open_objects`).

Nodes are compared by identity, since they may be cyclic. Caches of what is derived from nodes are `NodeCache`s.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Node = dict[str, Any] | bool

DERIVED = "derived"
DENIED = "denied"  # holds a node that must not hold, if its negation can't be expressed in other keywords
FRACTION = "fraction"  # marks a number that is not an integer

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
    """The schema can't be rewritten: it would grow too much, or it is not supported."""


def others(*types: str) -> tuple[str, ...]:
    """All types except these."""
    return tuple(name for name in TYPES if name not in types)


def type_of(value: Any) -> str:
    """The JSON type of a value; "number" for every number, also for an integer."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def key_of(value: Any) -> str:
    """A string that is equal for equal JSON values: 1 and 1.0 are equal, 1 and true are not."""
    return json.dumps(_plain(value), sort_keys=True)


class NodeCache(Generic[T]):
    """Caches a value for each set of nodes (and words), where nodes are the same if they are the same object.

    The keys are `id`s. A node's `id` may be given to another object once the node is freed, so the cache keeps its
    nodes alive.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[frozenset[int], tuple[str, ...]], tuple[T, tuple[Node, ...]]] = {}

    def get(self, nodes: Iterable[Node], make: Callable[[], T], *words: str) -> T:
        """The cached value for `nodes` and `words`; the first call makes it."""
        kept = tuple(nodes)
        key = frozenset(map(id, kept)), words
        if key not in self._entries:
            self._entries[key] = make(), kept
        return self._entries[key][0]


class Values(list[Any]):
    """The values of an `enum`, with a cached set of their keys."""

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """The `key_of` of each value."""
        return frozenset(map(key_of, self))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
