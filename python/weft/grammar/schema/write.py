"""Writes what is known of an alternative as JSON schema: a piece for each type that has bounds of its own.

Where a piece holds schemas, it has a hole, to be filled by what becomes of them (`rewrite.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import permutations
from math import factorial
from typing import Any

from weft.grammar.schema.facts import Arrays, Branch, Layer, Numbers, Strings, merged
from weft.grammar.schema.nodes import Node

Goal = list[Node]
Hole = Callable[[Goal], Any]

TEXT: Node = {"type": ("string",)}
"""What every name of a property is; a library may not know that by itself."""


@dataclass
class Piece:
    """A schema for some of the values; `needs` are goals without which nothing is of it."""

    schema: dict[str, Any]
    needs: list[Goal] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether it says no more than types."""
        return set(self.schema) == {"type"}


def pieces(branch: Branch, is_open: bool, hole: Hole) -> Iterator[Piece]:
    """The schemas, one of which is to hold."""
    beside = list(_beside(branch, hole))
    if branch.values is not None:
        schema: dict[str, Any] = {"enum": branch.values}
        if not branch.is_settled:
            schema |= _bounds(branch, is_open, hole)
        yield _with(Piece(schema), beside)
        return
    plain = []
    for name in branch.types:
        piece = _piece(branch, name, is_open, hole)
        if piece.is_plain and not beside:
            plain.append(piece.schema["type"])
        else:
            yield _with(piece, beside)
    if plain:
        yield Piece({"type": plain if len(plain) > 1 else plain[0]})


def _beside(branch: Branch, hole: Hole) -> Iterator[dict[str, Any]]:
    """Schemas that hold, too."""
    for node in branch.residue:
        yield {"not": hole([node])}
    for choices in branch.kept:
        yield {"anyOf": [hole(choice) for choice in choices]}
    for reference in branch.unresolved:
        yield {"$ref": reference}


def _with(piece: Piece, beside: list[dict[str, Any]]) -> Piece:
    if not beside:
        return piece
    if len(beside) == 1 and "not" in beside[0]:
        return Piece({**piece.schema, **beside[0]}, piece.needs)
    return Piece({"allOf": [piece.schema, *beside]}, piece.needs)


def _bounds(branch: Branch, is_open: bool, hole: Hole) -> dict[str, Any]:
    """What stands beside listed values that could not be tried."""
    schema: dict[str, Any] = {}
    for name in branch.types:
        schema |= _piece(branch, name, is_open, hole).schema
    return schema | {"type": list(branch.types)}


def _piece(branch: Branch, name: str, is_open: bool, hole: Hole) -> Piece:
    if name == "number":
        return Piece(_numbers(branch.numbers, hole))
    if name == "string":
        return Piece(_strings(branch.strings))
    if name == "array":
        return _arrays(branch.arrays, hole)
    if name == "object":
        return _objects(branch, is_open, hole)
    return Piece({"type": name})


def _numbers(numbers: Numbers, hole: Hole) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer" if numbers.integer else "number"}
    if numbers.low is not None:
        schema["exclusiveMinimum" if numbers.low_open else "minimum"] = numbers.low
    if numbers.high is not None:
        schema["exclusiveMaximum" if numbers.high_open else "maximum"] = numbers.high
    step = numbers.step
    if step is not None and numbers.integer:
        step = Fraction(step.numerator)  # the least whole number that is a multiple
    if step is not None and not (numbers.integer and step == 1):
        schema["multipleOf"] = step.numerator if step.denominator == 1 else float(step)
    if numbers.integer is False:
        schema["not"] = {"type": "integer"}
    return schema


def _strings(strings: Strings) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if strings.least:
        schema["minLength"] = strings.least
    if strings.most is not None:
        schema["maxLength"] = strings.most
    more = []
    for key, found in (("pattern", strings.patterns), ("format", strings.formats)):
        if found:
            schema[key] = found[0]
        more += [{"type": "string", key: value} for value in found[1:]]
    return {"allOf": [schema, *more]} if more else schema


def _arrays(arrays: Arrays, hole: Hole) -> Piece:
    first = [arrays.item(i) for i in range(arrays.num_first)]
    rest = arrays.item(arrays.num_first)
    most = arrays.most
    ends = [i for i, nodes in enumerate(first) if False in nodes] + ([len(first)] if False in rest else [])
    if ends:
        most = min(ends[0], len(first) if most is None else most)
    if most is not None and len(first) >= most:
        first, rest = first[:most], []
    schema: dict[str, Any] = {"type": "array"}
    if first:
        schema["prefixItems"] = [hole(nodes) for nodes in first]
    if rest and most != 0:
        schema["items"] = hole(rest)
    if arrays.least:
        schema["minItems"] = arrays.least
    if most is not None:
        schema["maxItems"] = most
    if arrays.unique and (most is None or most > 1):
        schema["uniqueItems"] = True
    if arrays.contains:
        _contains(schema, arrays, hole)
    if most is not None and arrays.least > most:
        return Piece({"enum": []}, [[False]])
    needs = first[: arrays.least] + ([rest] if arrays.least > len(first) else [])
    return Piece(schema, needs)


def _contains(schema: dict[str, Any], arrays: Arrays, hole: Hole) -> None:
    stated = []
    for node, least, most in arrays.contains:
        one: dict[str, Any] = {"contains": hole([node])}
        if least != 1:
            one["minContains"] = least
        if most is not None:
            one["maxContains"] = most
        stated.append(one)
    schema |= stated[0]
    if stated[1:]:
        schema["allOf"] = stated[1:]


def _objects(branch: Branch, is_open: bool, hole: Hole) -> Piece:
    objects = branch.objects
    parts = merged(objects, is_open)
    schema: dict[str, Any] = {"type": "object"}
    if parts.named:
        schema["properties"] = {name: hole(nodes) for name, nodes in parts.named.items()}
    if parts.patterns:
        schema["patternProperties"] = {pattern: hole(nodes) for pattern, nodes in parts.patterns.items()}
    if parts.rest:
        schema["additionalProperties"] = hole(parts.rest)
    if objects.required:
        schema["required"] = list(objects.required)
    if objects.least > len(objects.required):
        schema["minProperties"] = objects.least
    if objects.most is not None:
        schema["maxProperties"] = objects.most
    if parts.names:
        schema["propertyNames"] = hole([*parts.names, TEXT])
    if parts.apart:
        schema["allOf"] = [_layer(layer, hole) for layer in parts.apart]
    return Piece(schema, [parts.named[name] for name in objects.required if name in parts.named])


def without_void(node: dict[str, Any]) -> None:
    """Has an object be closed, in place, whose names or whose other properties nothing satisfies: what is said of
    names beside that would be lost on a library that takes it for leave to have some."""
    if node.get("propertyNames") is False:
        node["additionalProperties"] = False
        node.pop("patternProperties", None)
    if node.get("additionalProperties") is not False:
        return
    # Beside another pattern, which may match the same names, a forbidden one still says something.
    if any(one is not False for one in node.get("patternProperties", {}).values()):
        return
    node.pop("patternProperties", None)
    if not node.get("properties") or node.get("propertyNames") is False:
        node.pop("propertyNames", None)


def _layer(layer: Layer, hole: Hole) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if layer.first:
        schema["properties"] = {name: hole([node]) for name, node in layer.first.items()}
    if layer.patterns:
        schema["patternProperties"] = {p: hole([node]) for p, node in layer.patterns.items()}
    if layer.rest is not None:
        schema["additionalProperties"] = hole([layer.rest])
    return schema


MAX_PROPERTIES = 4
MAX_PIECES = 48

Names = tuple[str, ...]


def in_each_order(pieces: list[Piece]) -> Iterator[Piece]:
    """The pieces, and those of objects again in other orders."""
    are_few = _are_few(pieces)
    for piece in pieces:
        yield piece
        for names in _orders(piece, are_few):
            properties = piece.schema["properties"]
            ordered = {
                name: properties[name] for name in (*names, *(n for n in properties if n not in names))
            }
            yield Piece({**piece.schema, "properties": ordered}, piece.needs)


def lack_orders(pieces: list[Piece]) -> bool:
    """Whether these have orders that `in_each_order` does not give."""
    most = MAX_PROPERTIES if _are_few(pieces) else 1
    return any(len(_names(piece)) > most for piece in pieces)


def _are_few(pieces: list[Piece]) -> bool:
    counts = [
        factorial(len(names)) if len(names := _names(piece)) <= MAX_PROPERTIES else 2 for piece in pieces
    ]
    return sum(counts) <= MAX_PIECES


def _orders(piece: Piece, are_few: bool) -> Iterator[Names]:
    """Other orders than the one that it has."""
    names = _names(piece)
    if are_few and len(names) <= MAX_PROPERTIES:
        orders = permutations(names)
        next(orders)  # the one that it has
        yield from orders
        return
    required = tuple(name for name in piece.schema.get("required", ()) if name in names)
    first = (*required, *(name for name in names if name not in required))
    if first != names:
        yield first


def _names(piece: Piece) -> Names:
    """The properties that it may have."""
    properties = piece.schema.get("properties", {})
    return tuple(name for name, value in properties.items() if value is not False)
