"""Makes random JSON schemas with every keyword. Values come from a small pool, so that schemas and values often
match.

A few names, texts, numbers and patterns recur. Others are hard to handle in JSON: quotes, backslashes, control
characters, and letters beyond ASCII.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from weft.grammar.schema.structure import FORMATS, subschemas
from weft_bench.grammar.drafts import of_draft

NAMES = ["a", "b", "ab", "c"]
HARD_NAMES = ["é", 'a"b', "", "\\", "a b", "\n", "aa"]
TEXTS = ["", "a", "b", "ab", "aab", "c"]
HARD_TEXTS = ["é", 'a"', "\\", "\n", "\x01", "\x7f", "😀", "\u2028", "a/b", "2024-02-29", "1.2.3.4"]
NUMBERS = [-1, 0, 1, 2, 3, 4, 6, 1.5, 2.5]
HARD_NUMBERS = [-369.51, 0.1, 1e3, 99, 1e-3, 12345678901234567890, -0.5, 1e19]
PATTERNS = ["^a", "b$", "a", "^(a|b)*$", "^[ab]{1,2}$", "^a|b$"]
HARD_PATTERNS = [
    "^[^é]+$",
    "^[^é]{1,9}$",
    "[^a]",
    '^[^"]*$',
    r"^[^\\]{1,3}$",
    r"^[^\d]+$",
    "^(?!a)[ab]{1,3}$",
    "a(?=b)",
    r"^\d{2,4}$",
    r"^\w+$",
    r"^\S+$",
    r"\s",
    "^.{2,3}$",
    "^[é-ü]+$",
    r"^\u00e9+$",
    r"^[\x20-\x7e]*$",
    "^a$|^b$",
    "^(a|b|)$",
    r"^[\w.-]+@[a-z]+$",
    r"^\/x",
    r'^"a"$',
    r"^\\+$",
    r"^\n$",
    r"^[\s\S]{2}$",
    r"^[^\s]$",
    r"\D",
    "^.*$",
    "^$",
    "x?",
]
LEAVES = ["string", "number", "integer", "null", "boolean"]
HARD = 0.2
"""The probability of a hard item."""

Rng = random.Random
Node = dict[str, Any]


def _some(rng: Rng, plain: list[Any], hard: list[Any]) -> Any:
    return rng.choice(hard if rng.random() < HARD else plain)


def _names(rng: Rng, count: int) -> list[str]:
    return list(dict.fromkeys(_some(rng, NAMES, HARD_NAMES) for _ in range(count)))


def value(rng: Rng, depth: int = 2) -> Any:
    """Return a random value."""
    kind = rng.randrange(6 if depth else 4)
    if kind == 4:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return {name: value(rng, depth - 1) for name in _names(rng, rng.randrange(4))}
    texts, numbers = _some(rng, TEXTS, HARD_TEXTS), _some(rng, NUMBERS, HARD_NUMBERS)
    return rng.choice([texts, numbers, rng.choice([True, False]), None])


# -- schemas of one type each, in which the type itself may be missing


def _string(rng: Rng, depth: int) -> Node:
    found: Node = {"type": "string"} if rng.random() < 0.8 else {}
    if rng.random() < 0.3:
        found["minLength"] = rng.randrange(3)
    if rng.random() < 0.3:
        found["maxLength"] = rng.randrange(1, 4)
    if rng.random() < 0.4:
        found["pattern"] = _some(rng, PATTERNS, HARD_PATTERNS * 2)
    if rng.random() < 0.15:
        found["format"] = rng.choice([*sorted(FORMATS), "int64"])
    return found


def _hard_string(rng: Rng, depth: int) -> Node:
    """Return a string schema with one hard constraint."""
    if rng.random() < 0.4:
        return {"type": "string", "format": rng.choice(sorted(FORMATS))}
    return {"type": "string", "pattern": rng.choice(HARD_PATTERNS)}


def _number(rng: Rng, depth: int) -> Node:
    found: Node = {"type": rng.choice(["integer", "number"])} if rng.random() < 0.8 else {}
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if rng.random() < 0.25:
            found[key] = _some(rng, NUMBERS, HARD_NUMBERS)
    if rng.random() < 0.3:
        found["multipleOf"] = rng.choice([1, 2, 3, 0.5, 2.5, 0.1, 7, 1.0])
    return found


def _array(rng: Rng, depth: int) -> Node:
    found: Node = {"type": "array"} if rng.random() < 0.8 else {}
    if rng.random() < 0.6:
        found["items"] = schema(rng, depth - 1)
    if rng.random() < 0.3:
        found["prefixItems"] = [schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))]
    for key, most in (("minItems", 3), ("maxItems", 4)):
        if rng.random() < 0.3:
            found[key] = rng.randrange(most)
    if rng.random() < 0.1:
        found["uniqueItems"] = True
    if rng.random() < 0.1:
        found["contains"] = schema(rng, depth - 1)
        for key in ("minContains", "maxContains"):
            if rng.random() < 0.2:
                found[key] = rng.randrange(3)
    if rng.random() < 0.05:
        found["unevaluatedItems"] = rng.choice([False, schema(rng, depth - 1)])
    return found


def _object(rng: Rng, depth: int) -> Node:
    found: Node = {"type": "object"} if rng.random() < 0.8 else {}
    if rng.random() < 0.8:
        found["properties"] = {n: schema(rng, depth - 1) for n in _names(rng, rng.randrange(1, 4))}
    if rng.random() < 0.4:
        found["required"] = _names(rng, rng.randrange(1, 3))
    if rng.random() < 0.4:
        found["additionalProperties"] = rng.choice([True, False, schema(rng, depth - 1)])
    if rng.random() < 0.15:
        found["patternProperties"] = {
            _some(rng, PATTERNS, HARD_PATTERNS): schema(rng, depth - 1) for _ in range(rng.randrange(1, 3))
        }
    if rng.random() < 0.1:
        found["propertyNames"] = _of_names(rng)
    for key, most in (("minProperties", 4), ("maxProperties", 4)):
        if rng.random() < 0.15:
            found[key] = rng.randrange(most)
    if rng.random() < 0.1:
        found["dependentRequired"] = {rng.choice(NAMES): _names(rng, 1)}
    if rng.random() < 0.05:
        found["dependentSchemas"] = {rng.choice(NAMES): schema(rng, depth - 1)}
    if rng.random() < 0.05:
        found["unevaluatedProperties"] = rng.choice([False, schema(rng, depth - 1)])
    return found


def _map(rng: Rng, depth: int) -> Node:
    """Return an object schema that constrains names only by a rule."""
    found: Node = {
        "type": "object",
        "additionalProperties": rng.choice([True, False, schema(rng, depth - 1)]),
    }
    if rng.random() < 0.6:
        found["propertyNames"] = _of_names(rng)
    else:
        pattern = _some(rng, PATTERNS, HARD_PATTERNS * 2)
        found["patternProperties"] = {pattern: schema(rng, depth - 1)}
    if rng.random() < 0.3:
        found["minProperties"] = 1
    return found


def _of_names(rng: Rng) -> Any:
    return rng.choice(
        [
            {"pattern": _some(rng, PATTERNS, HARD_PATTERNS)},
            {"type": "string", "pattern": rng.choice(PATTERNS)},
            {"maxLength": rng.randrange(1, 4)},
            {"minLength": rng.randrange(1, 3)},
            {"enum": _names(rng, 2)},
            {"const": rng.choice(NAMES)},
            {"format": rng.choice(["date", "ipv4", "json-pointer", "uuid"])},
            {"not": {"enum": _names(rng, 2)}},
            {"anyOf": [{"maxLength": 1}, {"pattern": "^b"}]},
        ]
    )


def _combined(rng: Rng, depth: int) -> Node:
    key = rng.choice(["anyOf", "oneOf", "allOf", "not", "if"])
    found = schema(rng, 0) if rng.random() < 0.4 else {}
    found = dict(found) if isinstance(found, dict) else {}
    if key == "not":
        found["not"] = schema(rng, depth - 1)
    elif key == "if":
        found["if"] = schema(rng, depth - 1)
        for branch in ("then", "else"):
            if rng.random() < 0.8:
                found[branch] = schema(rng, depth - 1)
    else:
        found[key] = [schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    return found


def _unlike(rng: Rng, depth: int) -> Node:
    """Return a schema of one type with excluded values."""
    kind = rng.choice(LEAVES)
    barred = value(rng, 0)
    return {"type": kind, "not": rng.choice([{"const": barred}, {"enum": [barred, value(rng, 0)]}])}


def _listed(rng: Rng, depth: int) -> Node:
    found: Node = {"enum": [value(rng, 1) for _ in range(rng.randrange(1, 4))]}
    if rng.random() < 0.3:
        found = {"const": value(rng, 1)}
    if rng.random() < 0.4:
        found["type"] = rng.choice(LEAVES)
    return found


def _several(rng: Rng, depth: int) -> Node:
    kinds = rng.sample([*LEAVES, "array", "object"], rng.randrange(1, 4))
    return {"type": kinds, "maxLength": 2, "minItems": 1}


def _referred(rng: Rng, depth: int) -> Node:
    found: Node = {"$ref": rng.choice(["#/$defs/x", "#/$defs/x", "#/$defs/y", "#/$defs/z", "#why"])}
    if rng.random() < 0.1:
        return {"$dynamicRef": "#zed"}
    if rng.random() < 0.3:
        found |= _object(rng, 1)
    return found


SHAPES: list[Callable[[Rng, int], Node]] = [
    _string,
    _hard_string,
    _number,
    _listed,
    _several,
    _referred,
    _unlike,
]
NESTED: list[Callable[[Rng, int], Node]] = [_array, _object, _object, _map, _combined]


def schema(rng: Rng, depth: int) -> Any:
    """Return a random schema for a document that has `$defs`."""
    if rng.random() < 0.05:
        return rng.choice([True, {}])
    found = rng.choice(SHAPES if depth <= 0 else SHAPES + NESTED * 2)(rng, depth)
    if rng.random() < 0.05:
        found[rng.choice(["title", "description", "$comment", "x-note"])] = "a note"
    return found


def document(rng: Rng) -> Node:
    """Return a random schema with definitions that it can reference. The draft is random and may be declared, and
    keywords are in any order."""
    found = schema(rng, 2)
    found = found if isinstance(found, dict) else {}
    definitions = {
        "x": rng.choice([_string, _number, _listed, _several])(rng, 0),
        "y": {"$anchor": "why", **_object(rng, 1)},
        "z": {"$dynamicAnchor": "zed", **_recursive(rng)},
    }
    found = {**found, "$defs": definitions}
    draft = rng.choice([None, None, None, None, 2020, 2020, 2019, 7, 6, 4])
    if draft is not None:
        found = of_draft(found, draft)
    return _shuffled(rng, found)


def _recursive(rng: Rng) -> Node:
    again = rng.choice([{"$ref": "#/$defs/z"}, {"anyOf": [{"$ref": "#/$defs/z"}, {"type": "null"}]}])
    if rng.random() < 0.5:
        return {"type": "array", "items": again, "maxItems": 2}
    return {"type": "object", "properties": {"a": again, "b": schema(rng, 0)}, "required": ["b"]}


def _shuffled(rng: Rng, found: Node) -> Node:
    """Shuffle the keywords of each part in place. Property names keep their order, because answers follow it."""
    orders = {id(node): rng.sample(list(node), len(node)) for _, node in subschemas(found)}
    for _, node in list(subschemas(found)):
        items = [(key, node[key]) for key in orders[id(node)]]
        node.clear()
        node.update(items)
    return found
