"""Models Python's own functions whose results hold their arguments: for lists, iterators, dicts, copies and modules."""

from __future__ import annotations

import ast
from dataclasses import replace

from weft.migration import elsewhere
from weft.migration.arguments import Argument, Call
from weft.migration.values import (
    Constant,
    Keywords,
    Listed,
    Module,
    Plain,
    Tupled,
    Value,
    element_of,
    one_of,
)

COPIES = frozenset({"copy", "deepcopy", "snapshot"})
_SAME = frozenset({"list", "sorted", "reversed", "tuple", "set", "iter", "deque"})
_PLAIN = {"timedelta": "timedelta", "str": "str", "Path": "Path", "read_bytes": "bytes", "read_text": "str"}
_GROW = frozenset({"append", "add", "extend"})


def of_builtin(name: str, call: Call) -> Value | None:
    """Return the result of a call to a function that the program does not define, or None if it is unknown."""
    given = [one.value for one in call.placed]
    first = given[0] if given else None
    if name in _SAME:
        return Listed(element_of(first)) if first is not None or not given else None
    if name in COPIES:
        return first
    if name == "dict":
        return Keywords(_entries(call.named), is_whole=not given and not call.is_open)
    if name == "enumerate":
        return Listed(Tupled((Plain("int"), element_of(first))))
    if name == "zip":
        return Listed(Tupled(tuple(element_of(one) for one in given)))
    if name == "next":
        return element_of(first)
    if name in ("int", "len"):
        return Plain("int")
    return of_method(name, None, call)


def of_method(name: str, held: Value | None, call: Call) -> Value | None:
    """Return the result of a call to a method of `held` or a function of a module, or None if it is unknown."""
    first = call.placed[0].value if call.placed else None
    if name in ("pop", "popleft"):
        return element_of(held)
    if name in COPIES:
        return first if first is not None else held
    if name in _PLAIN:
        return Plain(_PLAIN[name])
    path = first.value if isinstance(first, Constant) else None
    if name == "import_module" and isinstance(path, str):
        return Module(path) if elsewhere.is_executor(path) or elsewhere.is_on_the_way(path) else None
    return None


def changed(name: str, held: Value | None, call: Call) -> Value | None:
    """Return the new value of a list or dict after a call to its method, or None if the method does not change it."""
    if isinstance(held, Tupled):
        held = Listed(element_of(held))
    if isinstance(held, Listed) and name in _GROW and call.placed:
        given = call.placed[0].value
        added = element_of(given) if name == "extend" else given
        return Listed(one_of(held.of, added) if held.of is not None else added)
    if isinstance(held, Keywords) and name == "update":
        first = call.placed[0].value if call.placed else Keywords(())
        entries = first.entries if isinstance(first, Keywords) else ()
        is_whole = held.is_whole and isinstance(first, Keywords) and first.is_whole and not call.is_open
        return replace(held, entries=(*held.entries, *entries, *_entries(call.named)), is_whole=is_whole)
    return None


def _entries(named: list[Argument]) -> tuple[tuple[str, ast.AST, Value | None], ...]:
    return tuple((str(one.name), one.node, one.value) for one in named)
