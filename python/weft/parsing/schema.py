"""What the schema of arguments says of each value in them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from weft.grammar.schema.canonical import Document
from weft.grammar.schema.evaluate import holds
from weft.grammar.schema.nodes import TYPES, Node, TooMuch
from weft.grammar.schema.values import type_of

MAX_PARTS = 1000
"""As many schemas may apply to one value; what others say is not asked."""
ALL = frozenset(TYPES)


class Schema:
    """A schema, or the part of one that a value inside must satisfy. One that is not understood takes everything."""

    def __init__(self, node: Node | str) -> None:
        self._node: Node = True if isinstance(node, str) else node

    @classmethod
    def of(cls, schema: Any) -> Schema:
        """What JSON data says."""
        try:
            return cls(Document(schema).root())
        except (TooMuch, ArithmeticError, ValueError, RecursionError):
            return cls(True)

    @functools.cached_property
    def types(self) -> frozenset[str]:
        """The types that a value may be of; "number" stands for integers, too."""
        return _types(self._node, {})

    def holds(self, value: Any) -> bool | None:
        """Whether a value satisfies it; None where that is not to be known."""
        try:
            return holds(value, self._node)
        except (ArithmeticError, ValueError, RecursionError):
            return None

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The properties that it names."""
        return frozenset(name for part in self._parts() for name in part.get("properties", {}))

    @property
    def is_list(self) -> bool:
        """Whether what is called "item" in a value is an item, and not a property."""
        return "array" in self.types and "item" not in self.names

    def property(self, name: str) -> Schema:
        """What the value of a property must satisfy."""
        found: list[Any] = []
        for part in self._parts():
            if name in part.get("properties", {}):
                found.append(part["properties"][name])
            elif "additionalProperties" in part:
                found.append(part["additionalProperties"])
            values = [
                value[name] for value in part.get("enum", ()) if isinstance(value, dict) and name in value
            ]
            found += [{"enum": values}] if values else []
        return _any_of(found)

    def item(self, index: int) -> Schema:
        """What an item of a list must satisfy."""
        found: list[Any] = []
        for part in self._parts():
            if index < len(part.get("prefixItems", ())):
                found.append(part["prefixItems"][index])
            elif "items" in part:
                found.append(part["items"])
            lists = [
                value for value in part.get("enum", ()) if isinstance(value, list) and index < len(value)
            ]
            found += [{"enum": [value[index] for value in lists]}] if lists else []
        return _any_of(found)

    def _parts(self) -> Iterator[dict[str, Any]]:
        """All that may apply to the value itself."""
        pending: list[Any] = [self._node]
        seen: set[int] = set()
        while pending and len(seen) < MAX_PARTS:
            node = pending.pop(0)
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            yield node
            pending += [node[key] for key in ("$ref", "then", "else") if key in node]
            for key in ("allOf", "anyOf", "oneOf"):
                pending += node.get(key, ())


def _any_of(nodes: list[Any]) -> Schema:
    nodes = [node for node in nodes if node is not False]
    return Schema(nodes[0] if len(nodes) == 1 else {"anyOf": nodes} if nodes else True)


def _types(node: Any, known: dict[int, frozenset[str]]) -> frozenset[str]:
    """The types that a node leaves; `known` are those of nodes that were met, all for one that refers to itself."""
    if not isinstance(node, dict):
        return ALL if node is not False else frozenset()
    if id(node) in known or len(known) > MAX_PARTS:
        return known.get(id(node), ALL)
    known[id(node)] = ALL
    found = ALL
    if "type" in node:
        found &= {"number" if name == "integer" else name for name in node["type"]}
    if "enum" in node:
        found &= {type_of(value) for value in node["enum"]}
    for each in [*([node["$ref"]] if "$ref" in node else []), *node.get("allOf", [])]:
        found &= _types(each, known)
    for key in ("anyOf", "oneOf"):
        if key in node:
            found &= frozenset[str]().union(*(_types(each, known) for each in node[key]))
    known[id(node)] = found
    return found
