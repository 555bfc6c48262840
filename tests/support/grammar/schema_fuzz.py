"""Random JSON schemas and values of a small world, so that both often meet: what strict guides are tried with."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NAMES = ["a", "b", "ab", "c"]
TEXTS = ["", "a", "b", "ab", "aab", "c"]
NUMBERS = [-1, 0, 1, 2, 3, 4, 6, 1.5, 2.5]
PATTERNS = ["^a", "b$", "a", "^(a|b)*$", "^[ab]{1,2}$", "^a|b$"]
LEAVES = ["string", "number", "integer", "null", "boolean"]

Rng = random.Random


def value(rng: Rng, depth: int = 2) -> Any:
    """A random value."""
    kind = rng.randrange(6 if depth else 4)
    if kind == 4:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return {name: value(rng, depth - 1) for name in rng.sample(NAMES, rng.randrange(4))}
    return rng.choice([rng.choice(TEXTS), rng.choice(NUMBERS), rng.choice([True, False]), None])


def _string(rng: Rng, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "string"} if rng.random() < 0.8 else {}
    if rng.random() < 0.4:
        found["minLength"] = rng.randrange(3)
    if rng.random() < 0.4:
        found["maxLength"] = rng.randrange(1, 4)
    if rng.random() < 0.4:
        found["pattern"] = rng.choice(PATTERNS)
    if rng.random() < 0.1:
        found["format"] = rng.choice(["date", "email", "int64", "regex", "uuid"])
    return found


def _number(rng: Rng, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": rng.choice(["integer", "number"])} if rng.random() < 0.8 else {}
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if rng.random() < 0.25:
            found[key] = rng.choice(NUMBERS)
    if rng.random() < 0.3:
        found["multipleOf"] = rng.choice([1, 2, 3, 0.5, 2.5])
    return found


def _array(rng: Rng, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "array"} if rng.random() < 0.8 else {}
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
    return found


def _object(rng: Rng, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object"} if rng.random() < 0.8 else {}
    if rng.random() < 0.8:
        found["properties"] = {n: schema(rng, depth - 1) for n in rng.sample(NAMES, rng.randrange(1, 4))}
    if rng.random() < 0.4:
        found["required"] = rng.sample(NAMES, rng.randrange(1, 3))
    if rng.random() < 0.4:
        found["additionalProperties"] = rng.choice([True, False, schema(rng, depth - 1)])
    if rng.random() < 0.15:
        found["patternProperties"] = {rng.choice(PATTERNS): schema(rng, depth - 1)}
    if rng.random() < 0.1:
        found["propertyNames"] = {"type": "string", "pattern": rng.choice(PATTERNS)}
    for key, most in (("minProperties", 4), ("maxProperties", 4)):
        if rng.random() < 0.15:
            found[key] = rng.randrange(most)
    if rng.random() < 0.1:
        found["dependentRequired"] = {rng.choice(NAMES): [rng.choice(NAMES)]}
    if rng.random() < 0.05:
        found["unevaluatedProperties"] = False
    return found


def _combined(rng: Rng, depth: int) -> dict[str, Any]:
    key = rng.choice(["anyOf", "oneOf", "allOf", "not", "if"])
    found = schema(rng, 0) if rng.random() < 0.4 else {}
    found = dict(found) if isinstance(found, dict) else {}
    if key == "not":
        found["not"] = schema(rng, depth - 1)
    elif key == "if":
        found |= {
            "if": schema(rng, depth - 1),
            "then": schema(rng, depth - 1),
            "else": schema(rng, depth - 1),
        }
    else:
        found[key] = [schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    return found


def _listed(rng: Rng, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"enum": [value(rng, 1) for _ in range(rng.randrange(1, 4))]}
    if rng.random() < 0.3:
        found = {"const": value(rng, 1)}
    if rng.random() < 0.4:
        found["type"] = rng.choice(LEAVES)
    return found


def _several(rng: Rng, depth: int) -> dict[str, Any]:
    return {
        "type": rng.sample([*LEAVES, "array", "object"], rng.randrange(1, 4)),
        "maxLength": 2,
        "minItems": 1,
    }


def _referred(rng: Rng, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"$ref": f"#/$defs/{rng.choice('xy')}"}
    if rng.random() < 0.3:
        found |= _object(rng, 1)
    return found


SHAPES: list[Callable[[Rng, int], dict[str, Any]]] = [_string, _number, _listed, _several, _referred]
NESTED: list[Callable[[Rng, int], dict[str, Any]]] = [_array, _object, _object, _combined]


def schema(rng: Rng, depth: int) -> Any:
    """A random schema within a document that has `$defs`."""
    if rng.random() < 0.05:
        return rng.choice([True, {}])
    return rng.choice(SHAPES if depth <= 0 else SHAPES + NESTED * 2)(rng, depth)


def document(rng: Rng) -> dict[str, Any]:
    """A random schema with definitions to refer to."""
    found = schema(rng, 2)
    found = found if isinstance(found, dict) else {}
    return {**found, "$defs": {"x": rng.choice(SHAPES[:4])(rng, 0), "y": _object(rng, 1)}}
