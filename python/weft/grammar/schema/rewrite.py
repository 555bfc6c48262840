"""Rewrites JSON schemas into equivalent ones that grammar libraries can enforce.

A goal is a list of nodes that hold together for one value. Each becomes alternatives of merged facts (`read.py`), whose
parts are goals again; those met before are referred to, so that recursion ends. What is pending waits in lists; only a
look ahead (`alternatives.py`) calls itself, to a small depth.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import Any

from weft.errors import GuideError
from weft.grammar.guide import Guide
from weft.grammar.notes import Place
from weft.grammar.schema import structure
from weft.grammar.schema.alternatives import Alternatives
from weft.grammar.schema.document import Document
from weft.grammar.schema.nodes import DERIVED, Node, TooMuch
from weft.grammar.schema.write import Goal, Piece, in_each_order, lack_orders, pieces, without_void

MAX_GOALS = 20_000
MAX_GROWTH = 16
MIN_GROWN = 1 << 16
MAX_NESTED = 12


@dataclass(frozen=True)
class Rewritten:
    """A schema that means the same. `places` tells where its parts come from, by their identity. A `reason` says why it
    was left as it was. `lacks_orders` where its open objects are each in one order only, since they have too many.
    """

    schema: Any
    places: dict[int, Place | None] = field(default_factory=dict)
    reason: str = ""
    lacks_orders: bool = False


def rewrite(schema: Any, open_objects: bool = False, all_orders: bool = False) -> Rewritten:
    """A schema that accepts what `schema` accepts, in words that grammar libraries know; plain JSON data, as is
    `schema`. Without `open_objects`, objects that name properties have no others, unless the schema says so. Properties
    come in some orders (`order.py`); with `all_orders` in each, or, where these are too many, in the schema's alone.

    What can't be rewritten is left as it was, a part of it or the whole. Never raises for what a schema holds.
    """
    try:
        return _Rewriting(schema, open_objects, all_orders).result()
    except TooMuch as reason:
        return Rewritten(schema, reason=str(reason))
    except (
        RecursionError,
        ArithmeticError,
        ValueError,
    ) as error:  # numbers and depths that Python can't take
        return Rewritten(schema, reason=str(error) or type(error).__name__)


@dataclass
class _Written:
    """A goal, what became of it, and where that goes."""

    goal: Goal
    place: Place | None
    depth: int
    pieces: list[Piece] = field(default_factory=list)
    holes: list[tuple[Any, Any, int]] = field(default_factory=list)
    uses: int = 0
    exists: bool = False
    value: Any = None
    name: str = ""


class _Hole:
    """Where a goal's schema goes."""

    def __init__(self, key: frozenset[int]) -> None:
        self.key = key


class _Rewriting:
    def __init__(self, schema: Any, is_open: bool, all_orders: bool) -> None:
        self._document = Document(schema)
        self._is_open = is_open
        self._all_orders = all_orders
        self._lacks_orders = False
        self._alternatives = Alternatives(is_open)
        self._size = len(json.dumps(schema))
        self._written: dict[frozenset[int], _Written] = {}
        self._pending: list[_Written] = []
        self._kept: list[Goal] = []

    def result(self) -> Rewritten:
        root = self._hole([self._document.root()], 0, None)
        for written in self._pending:  # it grows meanwhile
            self._write(written)
        if self._is_open:
            self._order()
        self._find_existing()
        if self._alternatives.narrows and isinstance(root, _Hole) and not self._written[root.key].exists:
            raise TooMuch("of the values looked at, none satisfies it")
        return self._assembled(root)

    # Goals

    def _flat(self, goal: Goal) -> Goal:
        """A goal's nodes without those that say nothing; references that stand alone are followed."""
        found: dict[int, Node] = {}
        for node in goal:
            seen: set[int] = set()
            while isinstance(node, dict) and len(node) == 1 and id(node) not in seen:
                seen.add(id(node))
                (key, value), *_ = node.items()
                if key == "$ref" and not isinstance(value, str):
                    node = value
                elif key == "allOf" and len(value) == 1:
                    node = value[0]
                elif key == "not" and isinstance(value, bool):
                    node = not value
            if (
                isinstance(node, dict)
                and id(node) in seen
                and "$ref" in node
                and not isinstance(node["$ref"], str)
            ):
                raise TooMuch("a $ref that leads to itself")
            if node is False:
                return [False]
            if isinstance(node, dict) and set(node) - {DERIVED}:
                found[id(node)] = node
        return list(found.values())

    def _hole(self, goal: Goal, depth: int, place: Place | None) -> Any:
        """What stands for a goal until all are written."""
        flat = self._flat(goal)
        if not flat:
            return True
        if flat == [False]:
            return False
        key = frozenset(map(id, flat))
        if key not in self._written:
            if len(self._written) >= MAX_GOALS:
                raise TooMuch("too many parts")
            self._kept.append(flat)
            places = [self._document.places[id(node)] for node in flat if id(node) in self._document.places]
            written = _Written(flat, places[0] if places else place, depth)
            self._written[key] = written
            self._pending.append(written)
        self._written[key].uses += 1
        return _Hole(key)

    def _write(self, written: _Written) -> None:
        def hole(goal: Goal) -> Any:
            return self._hole(goal, written.depth + 1, written.place)

        found: list[Piece] = []
        for branch in self._alternatives.expand(written.goal):
            if branch.is_choice:
                # Nothing but a choice: each alternative by itself, so that what is named stays in one place.
                for choice in self._alternatives.choices(branch, branch.forks[0]):
                    found.append(Piece({"anyOf": [hole(choice)]}, [choice]))
            else:
                found += pieces(branch, self._is_open, hole)
        written.pieces = found

    def _order(self) -> None:
        if self._all_orders and any(lack_orders(written.pieces) for written in self._pending):
            self._lacks_orders = True
            return
        for written in self._pending:
            ordered = list(in_each_order(written.pieces))
            for piece in ordered if len(ordered) > len(written.pieces) else ():
                for value in piece.schema.get("properties", {}).values():
                    if isinstance(value, _Hole):
                        self._written[value.key].uses += 1
            written.pieces = ordered

    # What is written

    def _find_existing(self) -> None:
        """Which goals some value satisfies, as far as what they need shows."""
        waiting: dict[frozenset[int], list[tuple[_Written, Piece]]] = {}
        missing: dict[int, int] = {}
        ready: list[_Written] = []

        def reach(written: _Written) -> None:
            if not written.exists:
                written.exists = True
                ready.append(written)

        for written in self._pending:
            for piece in written.pieces:
                keys = [self._key(goal) for goal in piece.needs]
                if None in keys:
                    missing[id(piece)] = -1
                    continue
                needed = {key for key in keys if key}
                missing[id(piece)] = len(needed)
                for key in needed:
                    assert key is not None
                    waiting.setdefault(key, []).append((written, piece))
                if not needed:
                    reach(written)
        while ready:
            done = ready.pop()
            for written, piece in waiting.get(frozenset(map(id, done.goal)), ()):
                missing[id(piece)] -= 1
                if missing[id(piece)] == 0:
                    reach(written)
        for written in self._pending:
            written.pieces = [piece for piece in written.pieces if missing[id(piece)] == 0]

    def _key(self, goal: Goal) -> frozenset[int] | None:
        """What tells a goal from others; None where nothing satisfies it, empty where everything does."""
        flat = self._flat(goal)
        return None if flat == [False] else frozenset(map(id, flat))

    def _assembled(self, root: Any) -> Rewritten:
        if isinstance(root, bool):
            return Rewritten(root)
        top = self._written[root.key]
        top.uses += 1
        definitions: dict[str, Any] = {}
        for written in self._pending:
            written.value = _joined(written.pieces) if written.exists else False
            if written is top:
                written.name = "#"
            elif isinstance(written.value, dict) and (written.uses > 1 or written.depth % MAX_NESTED == 0):
                if _is_small(written.value):
                    continue
                name = f"s{len(definitions)}"
                written.name = f"#/$defs/{name}"
                definitions[name] = written.value
        for written in self._pending:
            self._fill(written.value)
        schema = top.value
        if definitions and isinstance(schema, dict):
            schema = {**schema, "$defs": definitions}
        for _, node in structure.subschemas(schema):
            without_void(node)
        if len(json.dumps(schema)) > max(MIN_GROWN, MAX_GROWTH * self._size):
            raise TooMuch("it would grow too far")
        places = {id(each.value): each.place for each in self._pending if isinstance(each.value, dict)}
        return Rewritten(schema, {**places, id(schema): top.place}, lacks_orders=self._lacks_orders)

    def _fill(self, value: Any) -> None:
        """Puts schemas into the holes of one goal's; those of others are filled on their own."""
        pending = [value]
        while pending:
            part = pending.pop()
            items = (
                part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
            )
            for key, item in list(items):
                if isinstance(item, _Hole):
                    written = self._written[item.key]
                    part[key] = {"$ref": written.name} if written.name else written.value
                elif key != "enum" and isinstance(item, dict | list):
                    pending.append(item)


def _joined(found: list[Piece]) -> Any:
    """One schema for all pieces; types that stand alone are named together."""
    plain = [p.schema["type"] for p in found if p.is_plain]
    names = list(dict.fromkeys(n for types in plain for n in (types if isinstance(types, list) else [types])))
    rest = [piece.schema for piece in found if not piece.is_plain]
    if "number" in names and "integer" in names:
        names.remove("integer")
    if len(names) == 6:
        return True
    if names:
        rest.insert(0, {"type": names if len(names) > 1 else names[0]})
    choices = [
        item for schema in rest for item in (schema["anyOf"] if set(schema) == {"anyOf"} else [schema])
    ]
    return rest[0] if len(rest) == 1 and set(rest[0]) != {"anyOf"} else {"anyOf": choices}


def _is_small(schema: dict[str, Any]) -> bool:
    """Whether to repeat it is no longer than to refer to it."""
    return len(schema) <= 3 and all(isinstance(value, str | int | float | bool) for value in schema.values())


def rewritten(guide: Guide) -> Rewritten:
    """What is compiled for a guide of the kind json_schema. It must not be changed. Raises `GuideError` where nothing
    can satisfy the schema.
    """
    found = _rewritten(guide.source, guide.open_objects)
    if found.schema is False:
        raise GuideError("JSON schema: nothing can satisfy it")
    return found


def in_some_orders(guide: Guide) -> Rewritten:
    """The same for a library that can't be told of all orders otherwise: with some of them, where it lacks them."""
    found = rewritten(guide)
    if not found.lacks_orders:
        return found
    ordered = rewrite(json.loads(guide.source), guide.open_objects)
    return found if ordered.reason else ordered


@functools.lru_cache(maxsize=8)
def _rewritten(source: str, open_objects: bool) -> Rewritten:
    return rewrite(json.loads(source), open_objects, all_orders=True)
