"""JSON schemas as LLGuidance takes them, with the meaning that weft gives them.

LLGuidance keeps to the specification: an object may have properties that its schema does not name. weft closes such
objects, as XGrammar does, where that does not change what schemas together mean: not among schemas that hold at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from weft.grammar import json_schema

APPLICATORS = ("allOf", "anyOf", "oneOf", "$ref")
SILENT = ("contentEncoding", "contentMediaType", "contentSchema")


def silently_ignored(schema: Any) -> list[str]:
    """What LLGuidance ignores without a word, one line each, with where."""
    return [
        f"{json_schema.where(path)}: {key} is not enforced"
        for path, node in json_schema.subschemas(schema)
        for key in SILENT
        if key in node
    ]


def prepared(schema: Any, max_whitespace: int | None, separators: tuple[str, str] | None = None) -> str:
    """The schema for LLGuidance, as JSON text; `separators` as in `Guide.json_schema`."""
    schema = json.loads(json.dumps(schema))
    if not isinstance(schema, dict):
        schema = {} if schema else {"not": {}}
    held = _held_together(schema)
    for _, node in json_schema.subschemas(schema):
        _split(node)
        if id(node) not in held:
            _close(node)
    if separators is None:
        blanks = "+" if max_whitespace is None else f"{{1,{max_whitespace}}}"
        schema["x-guidance"] = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{blanks}"}
    else:
        item, key = separators
        schema["x-guidance"] = {"whitespace_flexible": False, "item_separator": item, "key_separator": key}
    return json.dumps(schema)


def _held_together(schema: Any) -> set[int]:
    """The objects (by identity) that hold together with another one for the same value."""
    held: set[int] = set()
    pending = [node for _, node in json_schema.subschemas(schema) if _num_parts(node) > 1]
    while pending:
        node = pending.pop()
        if id(node) in held:
            continue
        held.add(id(node))
        pending += _applied(schema, node)
    return held


def _num_parts(node: dict[str, Any]) -> int:
    """How many schemas hold at once for a value of `node`."""
    own = any(
        key in json_schema.CHECKS and key not in (*APPLICATORS, "$defs", "definitions", "type")
        for key in node
    )
    return own + sum(len(node[key]) if key == "allOf" else 1 for key in APPLICATORS if key in node)


def _applied(schema: Any, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas that a node applies to the same value."""
    for key in ("allOf", "anyOf", "oneOf"):
        yield from (branch for branch in node.get(key, []) if isinstance(branch, dict))
    target: Any = schema
    reference = node.get("$ref")
    if not isinstance(reference, str) or not reference.startswith("#"):
        return
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        target = target[int(name)] if isinstance(target, list) else target[name]
    if isinstance(target, dict):
        yield target


def _split(node: dict[str, Any]) -> None:
    """A oneOf whose branches exclude each other is an anyOf, which LLGuidance finds out by itself of types only."""
    if "oneOf" in node and "anyOf" not in node and json_schema.is_disjoint(node["oneOf"]):
        node["anyOf"] = node.pop("oneOf")


def _close(node: dict[str, Any]) -> None:
    if "unevaluatedProperties" in node and "additionalProperties" not in node:
        node["additionalProperties"] = node.pop("unevaluatedProperties")
    if "unevaluatedItems" in node and "items" not in node:
        node["items"] = node.pop("unevaluatedItems")
    named = set(node.get("properties", {}))
    if (named or "patternProperties" in node) and "additionalProperties" not in node:
        unknown = set(node.get("required", [])) - named
        node["additionalProperties"] = bool(unknown)
    if "prefixItems" in node and "items" not in node:
        node["items"] = False
