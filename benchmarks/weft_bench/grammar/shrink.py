"""Smaller schemas that still show what a large one does."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

LIMIT_S = 10.0


def shrunk(schema: Any, shows: Callable[[Any], bool], limit_s: float = LIMIT_S) -> Any:
    """A schema, of which parts are left out one after another as long as `shows` says yes of the rest."""
    until = time.monotonic() + limit_s
    found = schema
    while time.monotonic() < until:
        smaller = next((one for one in _smaller(found) if time.monotonic() < until and shows(one)), None)
        if smaller is None:
            break
        found = smaller
    return found


def _smaller(schema: Any) -> Iterator[Any]:
    """The schema with one part less, or with one part in the place of what holds it."""
    for path in _paths(schema):
        without = copy.deepcopy(schema)
        del _at(without, path[:-1])[path[-1]]
        yield without
        for value in _inner(_at(schema, path)):
            raised = copy.deepcopy(schema)
            _at(raised, path[:-1])[path[-1]] = value
            yield raised


def _paths(schema: Any) -> Iterator[tuple[Any, ...]]:
    """Where all parts are, the outermost first."""
    level: list[tuple[tuple[Any, ...], Any]] = [((), schema)]
    while level:
        level = [((*path, key), item) for path, part in level for key, item in _items(part)]
        yield from (path for path, _ in level)


def _items(part: Any) -> Iterable[tuple[Any, Any]]:
    return part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()


def _inner(part: Any) -> Iterator[Any]:
    """The schemas, and what may be one, in a part."""
    return (item for _, item in _items(part) if isinstance(item, dict))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value
