"""Shrinks a schema to a smaller one that still shows an error."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

LIMIT_S = 10.0


def shrunk(schema: Any, shows: Callable[[Any], bool], limit_s: float = LIMIT_S) -> Any:
    """Remove parts of a schema one after another, as long as `shows` returns True for the rest."""
    until = time.monotonic() + limit_s
    found = schema
    while time.monotonic() < until:
        smaller = next((one for one in _smaller(found) if time.monotonic() < until and shows(one)), None)
        if smaller is None:
            break
        found = smaller
    return found


def _smaller(schema: Any) -> Iterator[Any]:
    """Yield variants of the schema: without one part, or with a part in place of its parent."""
    for path in _paths(schema):
        without = copy.deepcopy(schema)
        del _at(without, path[:-1])[path[-1]]
        yield without
        for value in _inner(_at(schema, path)):
            raised = copy.deepcopy(schema)
            _at(raised, path[:-1])[path[-1]] = value
            yield raised


def _paths(schema: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all parts, from the outermost inwards."""
    level: list[tuple[tuple[Any, ...], Any]] = [((), schema)]
    while level:
        level = [((*path, key), item) for path, part in level for key, item in _items(part)]
        yield from (path for path, _ in level)


def _items(part: Any) -> Iterable[tuple[Any, Any]]:
    return part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()


def _inner(part: Any) -> Iterator[Any]:
    """Yield the values in a part that may be schemas."""
    return (item for _, item in _items(part) if isinstance(item, dict))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
