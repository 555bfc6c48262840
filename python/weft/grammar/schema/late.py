"""Late choices, which can be made only after all nodes of a branch are read: the number of an object's properties, the
position of an item of `contains`, and negations that the facts decide.

For example, "not all items are S" holds for a nonempty array whose items can't be S. "Not all other properties are S"
holds for an object with a required property that can't be S.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from weft.grammar.schema import formats, patterns
from weft.grammar.schema.facts import Branch, Fork, merged
from weft.grammar.schema.negate import absent, having
from weft.grammar.schema.nodes import DERIVED, Node, Values, others

MAX_POSITIONS = 8  # where the item of a `contains` may be; later positions are lost, so this narrows
# Over these, the condition stays in the schema as it is, and the libraries may not enforce it.
MAX_VALUES = 1000  # numbers of a range that is written as an enumeration
MAX_OPTIONAL = 48  # optional properties, of which at least one must be there
MAX_SUBSETS = 64  # sets of optional properties whose size is bounded


def late_fork(branch: Branch, is_open: bool, negative: Callable[[Node], Node]) -> Fork | None:
    """The next late choice of a branch, or None. `negative` gives the negation of a node."""
    if branch.is_settled:
        return None
    _not_all(branch, negative)
    return _listed(branch) or _contained(branch) or _sized(branch, is_open)


def _beside(branch: Branch, name: str, choices: list[list[Node]], narrows: bool = False) -> Fork:
    """A fork of `choices` for the values of type `name`, and one more choice for all other types."""
    if branch.types != (name,):
        choices = [[{"type": others(name)}], *choices]
    return Fork(choices, narrows=narrows)


def _listed(branch: Branch) -> Fork | None:
    """Turn a bounded range of multiples or integers into an enumeration, if negations remain that may exclude some."""
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
    """Turn "not all items satisfy S", in place, into "contains an item that does not satisfy S"."""
    for node in list(branch.residue) if branch.types == ("array",) else ():
        if isinstance(node, dict) and set(node) == {"items"}:
            branch.residue.remove(node)
            branch.arrays.contains.append((negative(node["items"]), 1, None))


def _contained(branch: Branch) -> Fork | None:
    """Turn `contains` into a choice of the item's position. In a long array only the first `MAX_POSITIONS` are allowed,
    which narrows."""
    arrays = branch.arrays
    if "array" not in branch.types:
        return None
    for i, (schema, low, high) in enumerate(arrays.contains):
        if high is not None or low != 1:
            continue
        if schema is True or schema == {}:
            del arrays.contains[i]
            return _beside(branch, "array", [[{"minItems": 1}]])
        del arrays.contains[i]
        places: list[list[Node]] = [
            [{"type": ("array",), "minItems": k + 1, "prefixItems": [*[True] * k, schema]}]
            for k in range(MAX_POSITIONS if arrays.high is None else min(arrays.high, MAX_POSITIONS))
        ]
        return _beside(branch, "array", places, narrows=arrays.high is None or arrays.high > MAX_POSITIONS)
    return None


def _sized(branch: Branch, is_open: bool) -> Fork | None:
    """Turn bounds on the number of properties into choices of optional properties, because a grammar can't count."""
    objects = branch.objects
    if "object" not in branch.types or (objects.low <= len(objects.required) and objects.high is None):
        return None
    parts = merged(objects, is_open)
    optional = [n for n, nodes in parts.named.items() if n not in objects.required and False not in nodes]
    if not optional or parts.separate:
        return None
    need = max(objects.low - len(objects.required), 0)  # optional properties that must exist
    room = None if objects.high is None else objects.high - len(objects.required)  # those that may
    if room is not None and room >= len(optional) and parts.is_closed:
        objects.high = room = None  # the object has too few properties to exceed the bound
    if need == 0 and room is None:
        return None
    if need > len(optional) and parts.is_closed:
        return Fork([[{"type": others("object")}]])
    if parts.is_closed and not parts.names and need <= 1 and room in (None, 1):
        return None  # the libraries support this case
    if room == 0:
        return _beside(branch, "object", [[absent(name) for name in optional]])
    if room is None and need == 1:
        return _first_of(branch, optional)
    # Fork on each optional property: present or absent. The number of alternatives is the number of allowed subsets.
    if _subsets(len(optional), len(optional) if room is None else room) > MAX_SUBSETS:
        return None
    name = optional[0]
    return _beside(branch, "object", [[having(name)], [absent(name)]])


def _first_of(branch: Branch, optional: list[str]) -> Fork | None:
    """Choices for "at least one property": by the first listed property that is there, or without any listed one."""
    if len(optional) > MAX_OPTIONAL:
        return None
    choices: list[list[Node]] = []
    for i, name in enumerate(optional):
        choices.append([_without(optional[:i]), having(name)])
    return _beside(branch, "object", [*choices, [_without(optional)]])


def _without(names: list[str]) -> Node:
    properties: dict[str, Any] = dict.fromkeys(names, False)
    return {"type": ("object",), "properties": properties, DERIVED: True}


def _subsets(count: int, max_size: int) -> int:
    """The number of subsets of `count` elements with at most `max_size`."""
    total = term = 1
    for size in range(1, min(count, max_size) + 1):
        term = term * (count - size + 1) // size
        total += term
    return total


IsVoid = Callable[[list[Node]], bool]


def decide(branch: Branch, is_void: IsVoid) -> Fork | None:
    """Drop negations from the residue that the facts prove. Returns a fork if a proof needs a choice, else None.
    `is_void` tells whether it is certain that nodes exclude each other."""
    for node in list(branch.residue):
        if not isinstance(node, dict):
            continue
        if set(node) == {"items"} and is_void([*branch.arrays.item(0), node["items"]]):
            branch.residue.remove(node)
            if branch.arrays.low == 0:
                not_empty: Node = {"type": ("array",), "minItems": 1}
                other_types: list[list[Node]] = (
                    [] if branch.types == ("array",) else [[{"type": others("array")}]]
                )
                return Fork([*other_types, [not_empty]])
        elif set(node) == {"format"} and formats.are_apart([*branch.strings.formats, node["format"]]):
            branch.residue.remove(node)
        elif set(node) == {"format"} and formats.implies(branch.strings.formats, node["format"]):
            branch.residue.remove(node)
            return Fork([[{"type": others("string")}]])
        elif branch.types == ("object",) and _is_shown(branch, node, is_void):
            branch.residue.remove(node)
    return None


def _is_shown(branch: Branch, node: dict[str, Any], is_void: IsVoid) -> bool:
    """Whether it is certain that a required property violates the node."""
    for name in branch.objects.required:
        wanted = _stated(node, name)
        if wanted is not None and is_void([*_nodes_of(branch, name), wanted]):
            return True
    return False


def _stated(node: dict[str, Any], name: str) -> Node | None:
    """The schema that the node applies to a property through patterns or `additionalProperties`; None if that is not
    certain."""
    verdicts = {pattern: patterns.is_found(pattern, name) for pattern in node.get("patternProperties", {})}
    if set(node) == {"patternProperties"}:
        return next(
            (node["patternProperties"][pattern] for pattern, verdict in verdicts.items() if verdict), None
        )
    is_other = name not in node.get("properties", {}) and all(
        verdict is False for verdict in verdicts.values()
    )
    rest: Node | None = node.get("additionalProperties") if is_other else None
    return rest


def _nodes_of(branch: Branch, name: str) -> list[Node]:
    nodes: list[Node] = []
    for layer in branch.objects.layers:
        if name in layer.first:
            nodes.append(layer.first[name])
        elif layer.rest is not None and not layer.patterns:
            nodes.append(layer.rest)
    return nodes
