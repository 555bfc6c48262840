"""Negates nodes. `denied` returns alternatives whose disjunction is the negation of a node.

If the negation of a part can't be expressed in other keywords, it stays as `{DENIED: part}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

from weft.grammar.schema import formats, patterns
from weft.grammar.schema.nodes import DENIED, DERIVED, FRACTION, OF_TYPE, TYPES, Node, key_of, others, type_of

MAX_PAIRS = 8  # branches of a `oneOf` whose negation is spelled out; with more it stays `DENIED`
BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
LOWER = {"minLength": ("string", "maxLength"), "minItems": ("array", "maxItems")}
LOWER |= {"minProperties": ("object", "maxProperties")}
UPPER = {high: (name, low) for low, (name, high) in LOWER.items()}


def denied(node: Node) -> list[Node]:
    """Negate a node. Returns alternatives that together accept exactly the values that the node does not accept."""
    if isinstance(node, bool):
        return [] if node else [True]
    alternatives: list[Node] = []
    for key, value in node.items():
        alternatives += _keyword(node, key, value)
    return alternatives


def negative(node: Node) -> Node:
    """The negation of a node, as `not`."""
    if isinstance(node, bool):
        return not node
    return {"not": node}


def _keyword(node: dict[str, Any], key: str, value: Any) -> list[Node]:
    if key in ("then", "else", DERIVED):
        return []
    if key == "type":
        return _types(value)
    if key == "enum":
        return list(_values(value))
    if key in ("not", DENIED):
        return [value]
    if key == "$ref" and not isinstance(value, str):
        return [negative(value)]
    if key == "allOf":
        return [negative(item) for item in value]
    if key == "anyOf":
        return [{"allOf": [negative(item) for item in value]}]
    if key == "oneOf" and len(value) <= MAX_PAIRS:
        none: Node = {"allOf": [negative(item) for item in value]}
        return [none, *({"allOf": list(pair)} for pair in combinations(value, 2))]
    if key == "if":
        no = negative(value)
        return [
            {"allOf": [value, negative(node["then"])]},
            {"allOf": [no, negative(node["else"])]},
        ]
    if key in BOUNDS:
        return [{"type": ("number",), BOUNDS[key]: value}]
    if key == FRACTION:
        return [{"type": (*others("number"), "integer")}]
    if key in ("pattern", "format"):
        inverse = patterns.inverse(value) if key == "pattern" else formats.inverse(value)
        if inverse is not None:
            return [{"type": ("string",), "pattern": inverse}]
    if key in LOWER or key in UPPER:
        return list(_count(key, value))
    if key == "contains" and value[1:] == (1, None):
        return [{"type": ("array",), "items": negative(value[0])}]
    alternatives = _array(key, value) if key == "prefixItems" else _object(key, value)
    return [_residue(node, key)] if alternatives is None else alternatives


def _residue(node: dict[str, Any], key: str) -> Node:
    """A `DENIED` node for a keyword, with the keywords beside it that it depends on."""
    needed = {"items": ("prefixItems",), "additionalProperties": ("properties", "patternProperties")}
    kept = {name: node[name] for name in (key, *needed.get(key, ())) if name in node}
    if key == "items" and "prefixItems" in kept:
        kept["prefixItems"] = [True] * len(kept["prefixItems"])
    if key == "additionalProperties":
        for name in ("properties", "patternProperties"):
            if name in kept:
                kept[name] = dict.fromkeys(kept[name], True)
    of_type = next(((name,) for name, keys in OF_TYPE.items() if key in keys), TYPES)
    return {"type": of_type, DENIED: kept}


def _types(names: tuple[str, ...]) -> list[Node]:
    left = tuple(name for name in TYPES if name not in names)
    if "integer" in names and "number" in left:
        rest = tuple(name for name in left if name != "number")
        return [*([{"type": rest}] if rest else []), {"type": ("number",), FRACTION: True}]
    return [{"type": left}] if left else []


def _count(key: str, value: int) -> Iterator[Node]:
    if key in UPPER:
        name, other = UPPER[key]
        yield {"type": (name,), other: value + 1}
    elif value > 0:
        name, other = LOWER[key]
        yield {"type": (name,), other: value - 1}


def _array(key: str, schemas: list[Node]) -> list[Node]:
    return [
        {"type": ("array",), "minItems": i + 1, "prefixItems": [*[True] * i, negative(schema)]}
        for i, schema in enumerate(schemas)
        if schema is not True
    ]


def _object(key: str, value: Any) -> list[Node] | None:
    if key == "required":
        return [absent(name) for name in dict.fromkeys(value)]
    if key == "properties":
        return [having(name, negative(schema)) for name, schema in value.items() if schema is not True]
    if key == "dependentRequired":
        return [{"allOf": [having(name), absent(need)]} for name, needs in value.items() for need in needs]
    if key == "dependentSchemas":
        return [{"allOf": [having(name), negative(schema)]} for name, schema in value.items()]
    if key == "propertyNames":
        names = _denied_names(value)
        return None if names is None else [having(name) for name in names]
    if key == "patternProperties":
        matched = {pattern: patterns.texts(pattern) for pattern in value}
        if None in matched.values():
            return None
        return [having(name, negative(value[p])) for p, listed in matched.items() for name in listed or ()]
    return None


def _denied_names(node: Node) -> list[str] | None:
    """The property names that a node of `propertyNames` forbids, if they are listed; None for other nodes."""
    if not isinstance(node, dict) or set(node) != {"not"} or not isinstance(node["not"], dict):
        return None
    denied_node = node["not"]
    if set(denied_node) == {"enum"}:
        return [value for value in denied_node["enum"] if isinstance(value, str)]
    return patterns.texts(denied_node["pattern"]) if set(denied_node) == {"pattern"} else None


def absent(name: str) -> Node:
    """A node for objects without a property."""
    return {"type": ("object",), "properties": {name: False}, DERIVED: True}


def having(name: str, schema: Node = True) -> Node:
    """A node for objects with a property that satisfies `schema`."""
    return {"type": ("object",), "required": [name], "properties": {name: schema}, DERIVED: True}


def _values(values: list[Any]) -> Iterator[Node]:
    by_type: dict[str, dict[str, Any]] = {}
    for value in values:
        by_type.setdefault(type_of(value), {})[key_of(value)] = value
    free = tuple(name for name in TYPES if name not in by_type)
    if free:
        yield {"type": free}
    for name, each in by_type.items():
        distinct = list(each.values())
        if name == "boolean" and len(distinct) == 1:
            yield {"enum": [not distinct[0]]}
        elif name == "string":
            yield {"type": ("string",), "pattern": patterns.none_of(distinct)}
        elif name == "number":
            yield from _between(sorted(distinct))
        elif name in ("array", "object"):
            yield {"allOf": [{"type": (name,)}, *({"anyOf": list(_unlike(value))} for value in distinct)]}


def _between(numbers: list[Any]) -> Iterator[Node]:
    yield {"type": ("number",), "exclusiveMaximum": numbers[0]}
    for low, high in pairwise(numbers):
        yield {"type": ("number",), "exclusiveMinimum": low, "exclusiveMaximum": high}
    yield {"type": ("number",), "exclusiveMinimum": numbers[-1]}


def _unlike(value: Any) -> Iterator[Node]:
    """Yield alternatives for arrays or objects that differ from a value."""
    if isinstance(value, list):
        yield {"type": ("array",), "minItems": len(value) + 1}
        if value:
            yield {"type": ("array",), "maxItems": len(value) - 1}
            yield from _array("prefixItems", [{"enum": [item]} for item in value])
        return
    yield {"type": ("object",), "minProperties": len(value) + 1}
    for name, item in value.items():
        yield absent(name)
        yield having(name, {"not": {"enum": [item]}})
