"""Choices that show only when all is read: how many properties an object has, where an item stands."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from weft.grammar.schema import formats, patterns
from weft.grammar.schema.facts import Branch, Fork, merged
from weft.grammar.schema.negate import absent, having
from weft.grammar.schema.nodes import DERIVED, Node, Values, others

MAX_POSITIONS = 8
MAX_VALUES = 1000
MAX_OPTIONAL = 48
MAX_SUBSETS = 64


def late_fork(branch: Branch, is_open: bool, negative: Callable[[Node], Node]) -> Fork | None:
    """The next choice, if there is one; `negative` gives what holds where a node does not."""
    if branch.is_settled:
        return None
    _not_all(branch, negative)
    return _listed(branch) or _contained(branch) or _sized(branch, is_open)


def _beside(branch: Branch, name: str, choices: list[list[Node]], narrows: bool = False) -> Fork:
    """Choices for values of one type, and all values of others."""
    if branch.types != (name,):
        choices = [[{"type": others(name)}], *choices]
    return Fork(choices, narrows=narrows)


def _listed(branch: Branch) -> Fork | None:
    """Few numbers, of which some are excluded, are listed."""
    numbers = branch.numbers
    step = numbers.step or Fraction(1)
    if numbers.integer:
        step = Fraction(step.numerator)
    if branch.values is not None or not branch.residue or "number" not in branch.types:
        return None
    if numbers.low is None or numbers.high is None or step.denominator != 1:
        return None
    if not numbers.integer and numbers.step is None:
        return None
    low, high = Fraction(str(numbers.low)), Fraction(str(numbers.high))
    first, last = -(-low // step), high // step
    if last - first > MAX_VALUES:
        return None
    values = [int(k * step) for k in range(int(first), int(last) + 1)]
    return _beside(branch, "number", [[{"enum": Values(values)}]] if values else [])


def _not_all(branch: Branch, negative: Callable[[Node], Node]) -> None:
    """An array of which not all items are of a schema contains another one."""
    for node in list(branch.residue) if branch.types == ("array",) else ():
        if isinstance(node, dict) and set(node) == {"items"}:
            branch.residue.remove(node)
            branch.arrays.contains.append((negative(node["items"]), 1, None))


def _contained(branch: Branch) -> Fork | None:
    """An item that an array contains stands somewhere: in a long array, among the first."""
    arrays = branch.arrays
    if "array" not in branch.types:
        return None
    for i, (schema, least, most) in enumerate(arrays.contains):
        if most is not None or least != 1:
            continue
        if schema is True or schema == {}:
            del arrays.contains[i]
            return _beside(branch, "array", [[{"minItems": 1}]])
        del arrays.contains[i]
        places: list[list[Node]] = [
            [{"type": ("array",), "minItems": k + 1, "prefixItems": [*[True] * k, schema]}]
            for k in range(MAX_POSITIONS if arrays.most is None else min(arrays.most, MAX_POSITIONS))
        ]
        return _beside(branch, "array", places, narrows=arrays.most is None or arrays.most > MAX_POSITIONS)
    return None


def _sized(branch: Branch, is_open: bool) -> Fork | None:
    """How many of an object's optional properties there are, where a grammar can't count them."""
    objects = branch.objects
    if "object" not in branch.types or (objects.least <= len(objects.required) and objects.most is None):
        return None
    parts = merged(objects, is_open)
    optional = [n for n, nodes in parts.named.items() if n not in objects.required and False not in nodes]
    if not optional or parts.apart:
        return None
    need = max(objects.least - len(objects.required), 0)
    room = None if objects.most is None else objects.most - len(objects.required)
    if room is not None and room >= len(optional) and parts.is_closed:
        objects.most = room = None
    if need == 0 and room is None:
        return None
    if need > len(optional) and parts.is_closed:
        return Fork([[{"type": others("object")}]])
    if parts.is_closed and not parts.names and need <= 1 and room in (None, 1):
        return None  # libraries can do that
    if room == 0:
        return _beside(branch, "object", [[absent(name) for name in optional]])
    if room is None and need == 1:
        return _first_of(branch, optional)
    if _subsets(len(optional), len(optional) if room is None else room) > MAX_SUBSETS:
        return None
    name = optional[0]
    return _beside(branch, "object", [[having(name)], [absent(name)]])


def _first_of(branch: Branch, optional: list[str]) -> Fork | None:
    """At least one property: the first of those that are named, or none of them and another one."""
    if len(optional) > MAX_OPTIONAL:
        return None
    choices: list[list[Node]] = []
    for i, name in enumerate(optional):
        choices.append([_without(optional[:i]), having(name)])
    return _beside(branch, "object", [*choices, [_without(optional)]])


def _without(names: list[str]) -> Node:
    properties: dict[str, Any] = dict.fromkeys(names, False)
    return {"type": ("object",), "properties": properties, DERIVED: True}


def _subsets(count: int, most: int) -> int:
    total = term = 1
    for size in range(1, min(count, most) + 1):
        term = term * (count - size + 1) // size
        total += term
    return total


IsVoid = Callable[[list[Node]], bool]


def decide(branch: Branch, is_void: IsVoid) -> Fork | None:
    """Drops what is shown to hold; a choice where that takes one."""
    for node in list(branch.residue):
        if not isinstance(node, dict):
            continue
        if set(node) == {"items"} and is_void([*branch.arrays.item(0), node["items"]]):
            branch.residue.remove(node)
            if branch.arrays.least == 0:
                some: Node = {"type": ("array",), "minItems": 1}
                rest: list[list[Node]] = [] if branch.types == ("array",) else [[{"type": others("array")}]]
                return Fork([*rest, [some]])
        elif set(node) == {"format"} and formats.are_apart([*branch.strings.formats, node["format"]]):
            branch.residue.remove(node)
        elif set(node) == {"format"} and formats.implies(branch.strings.formats, node["format"]):
            branch.residue.remove(node)
            return Fork([[{"type": others("string")}]])
        elif branch.types == ("object",) and _is_shown(branch, node, is_void):
            branch.residue.remove(node)
    return None


def _is_shown(branch: Branch, node: dict[str, Any], is_void: IsVoid) -> bool:
    """Whether a property that must be there is one that the node forbids."""
    for name in branch.objects.required:
        wanted = _wanted(node, name)
        if wanted is not None and is_void([*_known(branch, name), wanted]):
            return True
    return False


def _wanted(node: dict[str, Any], name: str) -> Node | None:
    """What the node says of a property for which nothing else stands; None where it may say nothing."""
    found = {pattern: patterns.found(pattern, name) for pattern in node.get("patternProperties", {})}
    if set(node) == {"patternProperties"}:
        return next(
            (node["patternProperties"][pattern] for pattern, verdict in found.items() if verdict), None
        )
    is_other = name not in node.get("properties", {}) and all(verdict is False for verdict in found.values())
    rest: Node | None = node.get("additionalProperties") if is_other else None
    return rest


def _known(branch: Branch, name: str) -> list[Node]:
    known: list[Node] = []
    for layer in branch.objects.layers:
        if name in layer.first:
            known.append(layer.first[name])
        elif layer.rest is not None and not layer.patterns:
            known.append(layer.rest)
    return known
