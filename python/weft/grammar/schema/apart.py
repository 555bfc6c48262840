"""Whether two alternatives certainly have no value in common, from what is known of them at first sight."""

from __future__ import annotations

from weft.grammar.schema.evaluate import holds
from weft.grammar.schema.facts import Branch
from weft.grammar.schema.nodes import Node
from weft.grammar.schema.values import key_of


def apart(one: Branch, other: Branch) -> bool:
    """Whether no value is of both."""
    types = set(one.types) & set(other.types)
    if not types:
        return True
    if one.values is not None and other.values is not None:
        return not {key_of(value) for value in one.values} & {key_of(value) for value in other.values}
    for listed, free in ((one, other), (other, one)):
        if listed.values is not None:
            return all(
                any(holds(value, node) is False for node in free.read.values()) for value in listed.values
            )
    return types == {"object"} and _objects_apart(one, other)


def _objects_apart(one: Branch, other: Branch) -> bool:
    """A property that one needs and the other can't have, or that has other values in each."""
    return any(
        _differ(_of(one, name), _of(other, name))
        for name in {**one.objects.required, **other.objects.required}
    )


def _of(branch: Branch, name: str) -> list[Node]:
    found: list[Node] = []
    for layer in branch.objects.layers:
        if name in layer.first:
            found.append(layer.first[name])
        elif layer.rest is False and not layer.patterns:
            found.append(False)
    return found


def _differ(ones: list[Node], others: list[Node]) -> bool:
    if False in ones or False in others:
        return True
    for one in ones:
        for other in others:
            if isinstance(one, dict) and isinstance(other, dict):
                if "enum" in one and all(holds(value, other) is False for value in one["enum"]):
                    return True
                if "enum" in other and all(holds(value, one) is False for value in other["enum"]):
                    return True
                if "type" in one and "type" in other and not _types(one) & _types(other):
                    return True
    return False


def _types(node: dict[str, object]) -> set[object]:
    names = node["type"]
    assert isinstance(names, tuple)
    return {"number" if name == "integer" else name for name in names}
