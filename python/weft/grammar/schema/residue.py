"""What must not hold and can't be said otherwise, where what is known of a value decides it.

"Not all items are S" holds of an array of which no item can be S, if it has one; "not all other properties are S" of an
object that has one which can't be. `is_void` tells whether nodes surely exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.grammar.schema import formats, patterns
from weft.grammar.schema.facts import Branch, Fork
from weft.grammar.schema.nodes import Node, others

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
