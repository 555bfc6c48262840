"""Rewrites JSON schemas into equivalent ones that grammar libraries can enforce.

`document.py` parses a schema of any draft to nodes. A goal is a list of nodes that one value must all satisfy.
`alternatives.py` expands a goal into alternatives without choices, and `read.py` collects the facts of each
(`facts.py`). `negate.py`, `late.py` and `evaluate.py` help. `write.py` writes the facts as pieces of JSON schema, whose
parts are goals again. A goal that was seen before becomes a `$ref`, so recursive schemas terminate.

Pending goals wait in a list. Only sketches (`alternatives.py`) recurse, to a small depth.

Constants named `MAX_...` bound the work and the size. Some decide which values the result accepts. Going over one has
one of these effects, which a comment at each names:

- `TooMuch`: the whole schema is left unchanged, and means what the library makes of it. `Rewritten.reason` says why.
- A condition stays in the schema in its own keywords. The library may not enforce it.
- Less is proved: two parts count as overlapping, or a part as possible. The result is longer, but accepts the same.
- Values are lost ("narrows"). The result is then never taken as proof that no value satisfies the schema.
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

MAX_GOALS = 20_000  # parts of the result; more: `TooMuch`
# The length of the result may be `MAX_GROWTH` times the schema's, or `MIN_GROWN` characters; more: `TooMuch`.
MAX_GROWTH = 16
MIN_GROWN = 1 << 16
MAX_NESTED = 12  # levels of the result without a `$ref`; the meaning does not depend on it


@dataclass(frozen=True)
class Rewritten:
    """An equivalent schema. `places` has the original places of its parts, by `id`. `reason` says why the schema was
    left unchanged; "" if it was rewritten. With `lacks_orders` each object has only the schema's order of properties,
    because all orders would be too many."""

    schema: Any
    places: dict[int, Place | None] = field(default_factory=dict)
    reason: str = ""
    lacks_orders: bool = False

    def is_open(self, open_objects: bool) -> bool:
        """Whether a library must treat objects as open by default. This is true for a rewritten schema, which states
        explicitly which objects are closed."""
        return open_objects or not self.reason


def rewrite(schema: Any, open_objects: bool = False, all_orders: bool = False) -> Rewritten:
    """Rewrite a schema to one that accepts the same values, in keywords that grammar libraries support. Both are plain
    JSON data. Without `open_objects`, objects that list properties forbid others, unless the schema allows them. Their
    properties come in the schema's order. With `open_objects`, properties come in some orders (`write.py`). With
    `all_orders` too they come in every order, or only in the schema's order if there are too many.

    A schema, or a part of it, that can't be rewritten is left unchanged. Never raises.
    """
    try:
        return _Rewriting(schema, open_objects, all_orders).result()
    except TooMuch as reason:
        return Rewritten(schema, reason=str(reason))
    # Numbers and depths beyond Python's limits raise these.
    except (RecursionError, ArithmeticError, ValueError) as error:
        return Rewritten(schema, reason=str(error) or type(error).__name__)


@dataclass
class _Written:
    """A goal, the pieces that it becomes, and how often it is used. `exists` says whether some value satisfies it."""

    goal: Goal  # also keeps the nodes alive: their `id`s are the key of `_Rewriting._written`
    place: Place | None
    depth: int
    pieces: list[Piece] = field(default_factory=list)
    holes: list[tuple[Any, Any, int]] = field(default_factory=list)
    uses: int = 0
    exists: bool = False
    value: Any = None
    name: str = ""


class _Hole:
    """A placeholder for a goal's schema, until that is written."""

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

    def result(self) -> Rewritten:
        root = self._hole([self._document.root()], 0, None)
        for written in self._pending:  # writing appends to it
            self._write(written)
        if self._is_open:
            self._order()
        self._find_existing()
        # Some choices lost values, so an empty result does not prove that no value satisfies the schema.
        if self._alternatives.narrows and isinstance(root, _Hole) and not self._written[root.key].exists:
            raise TooMuch("of the values looked at, none satisfies it")
        return self._assembled(root)

    # Goals

    def _flat(self, goal: Goal) -> Goal:
        """Simplify a goal: drop nodes that state nothing, and follow nodes that are just a reference."""
        nodes: dict[int, Node] = {}
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
                nodes[id(node)] = node
        return list(nodes.values())

    def _hole(self, goal: Goal, depth: int, place: Place | None) -> Any:
        """A placeholder for a goal; True or False if the goal is trivial."""
        flat = self._flat(goal)
        if not flat:
            return True
        if flat == [False]:
            return False
        key = frozenset(map(id, flat))
        if key not in self._written:
            if len(self._written) >= MAX_GOALS:
                raise TooMuch("too many parts")
            places = [self._document.places[id(node)] for node in flat if id(node) in self._document.places]
            written = _Written(flat, places[0] if places else place, depth)
            self._written[key] = written
            self._pending.append(written)
        self._written[key].uses += 1
        return _Hole(key)

    def _write(self, written: _Written) -> None:
        def hole(goal: Goal) -> Any:
            return self._hole(goal, written.depth + 1, written.place)

        all_pieces: list[Piece] = []
        for branch in self._alternatives.expand(written.goal):
            if branch.is_choice:
                # The goal is just a choice, so each alternative becomes a separate goal, which others can refer to.
                for choice in self._alternatives.choices(branch, branch.forks[0]):
                    all_pieces.append(Piece({"anyOf": [hole(choice)]}, [choice]))
            else:
                all_pieces += pieces(branch, self._is_open, hole)
        written.pieces = all_pieces

    def _order(self) -> None:
        if self._all_orders and any(lack_orders(written.pieces) for written in self._pending):
            self._lacks_orders = True
            return
        for written in self._pending:
            ordered = list(in_each_order(written.pieces))
            # Each order repeats the schemas of the properties. Count these as uses, so that they become definitions.
            for piece in ordered if len(ordered) > len(written.pieces) else ():
                for value in piece.schema.get("properties", {}).values():
                    if isinstance(value, _Hole):
                        self._written[value.key].uses += 1
            written.pieces = ordered

    # Writing

    def _find_existing(self) -> None:
        """Find the goals that some finite value satisfies, and drop all pieces that no finite value satisfies. A goal
        exists if one of its pieces needs only goals that exist: a least fixed point."""
        waiting: dict[frozenset[int], list[tuple[_Written, Piece]]] = {}  # by goal: the pieces that need it
        # By piece: the number of needed goals not known to exist. A piece with a goal that can't exist has no entry.
        missing: dict[int, int] = {}
        ready: list[_Written] = []  # a worklist of goals that exist

        def reach(written: _Written) -> None:
            if not written.exists:
                written.exists = True
                ready.append(written)

        for written in self._pending:
            for piece in written.pieces:
                keys = [self._key(goal) for goal in piece.needs]
                if None in keys:
                    continue
                needed = {key for key in keys if key}  # an empty key is a goal that every value satisfies
                missing[id(piece)] = len(needed)
                for key in needed:
                    assert key is not None
                    waiting.setdefault(key, []).append((written, piece))
                if not needed:
                    reach(written)
        while ready:
            reached = ready.pop()
            for written, piece in waiting.get(frozenset(map(id, reached.goal)), ()):
                missing[id(piece)] -= 1
                if missing[id(piece)] == 0:
                    reach(written)
        for written in self._pending:
            written.pieces = [piece for piece in written.pieces if missing.get(id(piece)) == 0]

    def _key(self, goal: Goal) -> frozenset[int] | None:
        """The key of a goal; None if no value satisfies it, empty if every value does."""
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
            # Schemas that are used more than once become definitions. So does each `MAX_NESTED`th level, to limit the
            # nesting depth.
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
        """Replace the placeholders in one goal's schema. The schemas of other goals are filled by their own calls."""
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


def _joined(all_pieces: list[Piece]) -> Any:
    """Join pieces to one schema. Types without bounds are joined to one list of types."""
    plain_types = [p.schema["type"] for p in all_pieces if p.is_plain]
    names = list(
        dict.fromkeys(n for types in plain_types for n in (types if isinstance(types, list) else [types]))
    )
    schemas = [piece.schema for piece in all_pieces if not piece.is_plain]
    if "number" in names and "integer" in names:
        names.remove("integer")
    if len(names) == 6:
        return True
    if names:
        schemas.insert(0, {"type": names if len(names) > 1 else names[0]})
    choices = [
        item for schema in schemas for item in (schema["anyOf"] if set(schema) == {"anyOf"} else [schema])
    ]
    return schemas[0] if len(schemas) == 1 and set(schemas[0]) != {"anyOf"} else {"anyOf": choices}


def _is_small(schema: dict[str, Any]) -> bool:
    """Whether a schema is so small that a `$ref` would not be shorter."""
    return len(schema) <= 3 and all(isinstance(value, str | int | float | bool) for value in schema.values())


def rewritten(guide: Guide) -> Rewritten:
    """The rewritten schema of a JSON schema guide, cached for both libraries. Callers must not modify it. Raises
    `GuideError` if no value satisfies the schema."""
    result = _rewritten(guide.source, guide.open_objects)
    if result.schema is False:
        raise GuideError("JSON schema: nothing can satisfy it")
    return result


def in_some_orders(guide: Guide) -> Rewritten:
    """As `rewritten`, for a library that can't express property order in another way: if the schema `lacks_orders`,
    some orders are written out."""
    result = rewritten(guide)
    if not result.lacks_orders:
        return result
    ordered = rewrite(json.loads(guide.source), guide.open_objects)
    return result if ordered.reason else ordered


@functools.lru_cache(maxsize=8)
def _rewritten(source: str, open_objects: bool) -> Rewritten:
    return rewrite(json.loads(source), open_objects, all_orders=True)
