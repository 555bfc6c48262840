"""Looks up the subschema that applies to each value of a call's arguments."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from weft.grammar.schema.document import Document
from weft.grammar.schema.evaluate import holds
from weft.grammar.schema.nodes import TYPES, Node, TooMuch, type_of

MAX_PARTS = 1000
"""The maximum number of subschemas that are checked for one value."""
ALL = frozenset(TYPES)


class Schema:
    """A schema, or a subschema for a nested value. A schema that can't be parsed accepts everything."""

    def __init__(self, node: Node | str) -> None:
        self._node: Node = True if isinstance(node, str) else node

    @classmethod
    def of(cls, schema: Any) -> Schema:
        """Parse a schema given as JSON data."""
        try:
            return cls(Document(schema).root())
        except (TooMuch, ArithmeticError, ValueError, RecursionError):
            return cls(True)

    @functools.cached_property
    def types(self) -> frozenset[str]:
        """The JSON types that the value may have; "number" includes integers."""
        return _types(self._node, {})

    def holds(self, value: Any) -> bool | None:
        """Whether a value satisfies the schema; None if that can't be decided."""
        try:
            return holds(value, self._node)
        except (ArithmeticError, ValueError, RecursionError):
            return None

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The names of the properties that the schema lists."""
        return frozenset(name for part in self._parts() for name in part.get("properties", {}))

    @property
    def is_list(self) -> bool:
        """Whether the value may be a list, and has no property "item". If so, an XML member called "item" is a list
        item, and not a property of that name."""
        return "array" in self.types and "item" not in self.names

    def property(self, name: str) -> Schema:
        """The schema of a property's value."""
        matches: list[Any] = []
        for part in self._parts():
            if name in part.get("properties", {}):
                matches.append(part["properties"][name])
            elif "additionalProperties" in part:
                matches.append(part["additionalProperties"])
            values = [
                value[name] for value in part.get("enum", ()) if isinstance(value, dict) and name in value
            ]
            matches += [{"enum": values}] if values else []
        return _any_of(matches)

    def item(self, index: int) -> Schema:
        """The schema of the list item at `index`."""
        matches: list[Any] = []
        for part in self._parts():
            if index < len(part.get("prefixItems", ())):
                matches.append(part["prefixItems"][index])
            elif "items" in part:
                matches.append(part["items"])
            lists = [
                value for value in part.get("enum", ()) if isinstance(value, list) and index < len(value)
            ]
            matches += [{"enum": [value[index] for value in lists]}] if lists else []
        return _any_of(matches)

    def _parts(self) -> Iterator[dict[str, Any]]:
        """Yield all subschemas that may apply to the value itself."""
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
    """The types that a node allows. `known` caches the results. While a node is evaluated, it counts as allowing all
    types. This ends cycles of references."""
    if not isinstance(node, dict):
        return ALL if node is not False else frozenset()
    if id(node) in known or len(known) > MAX_PARTS:
        return known.get(id(node), ALL)
    known[id(node)] = ALL
    types = ALL
    if "type" in node:
        types &= {"number" if name == "integer" else name for name in node["type"]}
    if "enum" in node:
        types &= {type_of(value) for value in node["enum"]}
    for each in [*([node["$ref"]] if "$ref" in node else []), *node.get("allOf", [])]:
        types &= _types(each, known)
    for key in ("anyOf", "oneOf"):
        if key in node:
            types &= frozenset[str]().union(*(_types(each, known) for each in node[key]))
    known[id(node)] = types
    return types
