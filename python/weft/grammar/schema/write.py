"""Writes the facts of an alternative as pieces of JSON schema: one for each type that has its own bounds.

A piece has placeholders (holes) for its subschemas; `rewrite.py` fills them.

Libraries require properties in the order in which a schema lists them, but in the specification order does not matter.
So with `open_objects`, objects with few properties are repeated in every order. Objects with more properties are
repeated once, with the required properties first, in the order of `required`.
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
"""The schema of every property name. It is written out, because a library may not assume that names are strings."""


@dataclass
class Piece:
    """A schema for some of a goal's values. A value can satisfy it only if each goal in `needs` has a value."""

    schema: dict[str, Any]
    needs: list[Goal] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether the schema has only `type`."""
        return set(self.schema) == {"type"}


def pieces(branch: Branch, is_open: bool, hole: Hole) -> Iterator[Piece]:
    """Yield the pieces of a branch. Their disjunction is the branch."""
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
    """Yield the conditions that each piece must have in addition: negations, unexpanded choices, dangling
    references."""
    for node in branch.residue:
        yield {"not": hole([node])}
    for choices in branch.unmade:
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
    """The bounds to write beside an `enum`, if it is unknown whether all its values satisfy them."""
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
        step = Fraction(step.numerator)  # the least integer that is a multiple of it
    if step is not None and not (numbers.integer and step == 1):
        schema["multipleOf"] = step.numerator if step.denominator == 1 else float(step)
    if numbers.integer is False:
        schema["not"] = {"type": "integer"}
    return schema


def _strings(strings: Strings) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if strings.low:
        schema["minLength"] = strings.low
    if strings.high is not None:
        schema["maxLength"] = strings.high
    more = []
    for key, values in (("pattern", strings.patterns), ("format", strings.formats)):
        if values:
            schema[key] = values[0]
        more += [{"type": "string", key: value} for value in values[1:]]
    return {"allOf": [schema, *more]} if more else schema


def _arrays(arrays: Arrays, hole: Hole) -> Piece:
    first = [arrays.item(i) for i in range(arrays.num_first)]
    rest = arrays.item(arrays.num_first)
    high = arrays.high
    ends = [i for i, nodes in enumerate(first) if False in nodes] + ([len(first)] if False in rest else [])
    if ends:
        high = min(ends[0], len(first) if high is None else high)
    if high is not None and len(first) >= high:
        first, rest = first[:high], []
    schema: dict[str, Any] = {"type": "array"}
    if first:
        schema["prefixItems"] = [hole(nodes) for nodes in first]
    if rest and high != 0:
        schema["items"] = hole(rest)
    if arrays.low:
        schema["minItems"] = arrays.low
    if high is not None:
        schema["maxItems"] = high
    if arrays.unique and (high is None or high > 1):
        schema["uniqueItems"] = True
    if arrays.contains:
        _contains(schema, arrays, hole)
    if high is not None and arrays.low > high:
        return Piece({"enum": []}, [[False]])
    needs = first[: arrays.low] + ([rest] if arrays.low > len(first) else [])
    return Piece(schema, needs)


def _contains(schema: dict[str, Any], arrays: Arrays, hole: Hole) -> None:
    schemas = []
    for node, low, high in arrays.contains:
        contained: dict[str, Any] = {"contains": hole([node])}
        if low != 1:
            contained["minContains"] = low
        if high is not None:
            contained["maxContains"] = high
        schemas.append(contained)
    schema |= schemas[0]
    if schemas[1:]:
        schema["allOf"] = schemas[1:]


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
    if objects.low > len(objects.required):
        schema["minProperties"] = objects.low
    if objects.high is not None:
        schema["maxProperties"] = objects.high
    if parts.names:
        schema["propertyNames"] = hole([*parts.names, TEXT])
    if parts.separate:
        schema["allOf"] = [_layer(layer, hole) for layer in parts.separate]
    return Piece(schema, [parts.named[name] for name in objects.required if name in parts.named])


def without_void(node: dict[str, Any]) -> None:
    """Close an object, in place, if no name or no additional property is possible. Keywords about names are then
    removed, because a library may take them as permission for more properties."""
    if node.get("propertyNames") is False:
        node["additionalProperties"] = False
        node.pop("patternProperties", None)
    if node.get("additionalProperties") is not False:
        return
    # Beside an allowed pattern a forbidden one matters, because both may match the same name.
    if any(value is not False for value in node.get("patternProperties", {}).values()):
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


# Objects with more properties, or goals with more pieces over all orders, get only one more order, as the module's
# docstring says.
MAX_PROPERTIES = 4
MAX_PIECES = 48

Names = tuple[str, ...]


def in_each_order(pieces: list[Piece]) -> Iterator[Piece]:
    """Yield the pieces, and repeat those of objects with other orders of properties."""
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
    """Whether `in_each_order` would leave out some orders."""
    max_names = MAX_PROPERTIES if _are_few(pieces) else 1
    return any(len(_names(piece)) > max_names for piece in pieces)


def _are_few(pieces: list[Piece]) -> bool:
    counts = [
        factorial(len(names)) if len(names := _names(piece)) <= MAX_PROPERTIES else 2 for piece in pieces
    ]
    return sum(counts) <= MAX_PIECES


def _orders(piece: Piece, are_few: bool) -> Iterator[Names]:
    """Yield the further orders in which a piece is repeated."""
    names = _names(piece)
    if are_few and len(names) <= MAX_PROPERTIES:
        orders = permutations(names)
        next(orders)  # skip the piece's own order
        yield from orders
        return
    required = tuple(name for name in piece.schema.get("required", ()) if name in names)
    required_first = (*required, *(name for name in names if name not in required))
    if required_first != names:
        yield required_first


def _names(piece: Piece) -> Names:
    """The properties that a piece lists and allows."""
    properties = piece.schema.get("properties", {})
    return tuple(name for name, value in properties.items() if value is not False)
