"""Prepares JSON schemas for LLGuidance, with weft's semantics, and finds the keywords that it would not enforce.

LLGuidance follows the specification: an object may have properties that its schema does not list. Like XGrammar, weft
closes an object that lists properties. It does not close schemas that apply to the same value as another one (as in
`allOf`), because each would then forbid the other's properties.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from weft.grammar.guide import TIDY, MaxWhitespace
from weft.grammar.notes import Findings, Place
from weft.grammar.schema import structure as json_schema
from weft.grammar.schema.formats import PATTERNS, spell_format
from weft.grammar.xgrammar.patterns import without_nul

APPLICATORS = ("allOf", "anyOf", "oneOf", "$ref")
UNKNOWN = {"not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"}
UNKNOWN |= {"propertyNames", "dependentRequired", "dependentSchemas", "dependencies"}
UNKNOWN |= {"$dynamicRef", "$recursiveRef"}
FORMATS = {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}


def not_enforced(
    schema: Any, open_objects: bool = False, places: Mapping[int, Place | None] | None = None
) -> Findings:
    """The keywords that LLGuidance would ignore, weaken, or refuse without naming the place. `prepared` removes most of
    them. LLGuidance refuses some other keywords itself."""
    for place, node in json_schema.subschemas(schema, places=places):
        for key in node:
            if key in UNKNOWN and not (key == "uniqueItems" and node[key] is False):
                yield place, f"{key} is not enforced"
        for key in _lost(node):
            yield place, f"{key} is not enforced beside schemas that hold at once"
        for key in _uncounted(node, open_objects):
            yield (
                place,
                f"{key} is not enforced where properties may be missing, or have names that may come twice",
            )
        for key in _crossed(node):
            yield place, f"{key} is not enforced so near to the other bound"
        for description in (
            *json_schema.inexact_values(node, json_schema.EXACT_IN_DOUBLES),
            *json_schema.loosened_bounds(node),
        ):
            yield place, description
        if node.get("format") in json_schema.FORMATS - (FORMATS if "pattern" in node else set(PATTERNS)):
            yield place, f"format {json_schema.shown(node['format'])} is not known"
        for key, regex in json_schema.regexes(node):
            if json_schema.looks_around(regex):
                yield place, f"the look-around of {key} {json_schema.shown(regex)} is not enforced"


def overlapping(schema: Any, places: Mapping[int, Place | None] | None = None) -> Findings:
    """Each `oneOf` whose branches may overlap. LLGuidance reports such a `oneOf` as not supported, without its
    place."""
    for place, node in json_schema.subschemas(schema, places=places):
        if "oneOf" in node and not json_schema.is_disjoint(node["oneOf"]):
            yield place, "oneOf is enforced as anyOf, since its branches may overlap"


def _lost(node: dict[str, Any]) -> Iterator[str]:
    """Yield the `unevaluated` keywords whose meaning depends on the applicators beside them."""
    for key in ("unevaluatedProperties", "unevaluatedItems"):
        if node.get(key, True) not in (True, {}) and not set(node).isdisjoint(APPLICATORS):
            yield key


def _crossed(node: dict[str, Any]) -> Iterator[str]:
    """Yield exclusive integer bounds that LLGuidance does not exclude, because the other bound is less than 1 away."""
    low, high = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    inclusive_low, inclusive_high = node.get("minimum", low), node.get("maximum", high)
    if node.get("type") == "integer":
        return
    for key, bound, other in (
        ("exclusiveMinimum", low, inclusive_high),
        ("exclusiveMaximum", high, inclusive_low),
    ):
        if not isinstance(bound, int | float) or not isinstance(other, int | float):
            continue
        if json_schema.is_whole(bound) and 0 < abs(other - bound) < 1:
            yield key


def _uncounted(node: dict[str, Any], open_objects: bool) -> Iterator[str]:
    """Yield bounds on the number of properties that LLGuidance does not enforce. It enforces them if all listed
    properties are required, except a `minProperties` that needs several unlisted ones."""
    named = {name for name, schema in node.get("properties", {}).items() if schema is not False}
    required, patterns = set(node.get("required", [])), bool(node.get("patternProperties"))
    is_open = node.get("additionalProperties", open_objects or not named) is not False or patterns
    num_more, max_properties = max(node.get("minProperties", 0) - len(required), 0), node.get("maxProperties")
    may_miss = not required.issuperset(named)
    # LLGuidance itself turns "at least one" or "at most one" of the listed properties into alternatives.
    if may_miss and not is_open and num_more <= 1 and max_properties in (None, len(required) + 1):
        return
    if num_more and (may_miss or (is_open and num_more > 1)):
        yield "minProperties"
    if max_properties is not None and may_miss:
        yield "maxProperties"


def prepared(
    schema: Any,
    max_whitespace: MaxWhitespace,
    separators: tuple[str, str] | None = None,
    open_objects: bool = False,
    coerce_one_of: bool = False,
) -> str:
    """Prepare a schema for LLGuidance. Returns JSON text. `max_whitespace`, `separators` and `open_objects` are as in
    `Guide.json_schema`. With `coerce_one_of` every `oneOf` means `anyOf`."""
    schema = json.loads(json.dumps(schema))
    for _, node in json_schema.subschemas(schema):
        spell_format(node)
        _leave_out(node, open_objects)
        _spell(node)
    if not isinstance(schema, dict):
        schema = {} if schema else {"not": {}}
    combined = _held_together(schema)
    for _, node in json_schema.subschemas(schema):
        _split(node)
        if not open_objects and id(node) not in combined:
            _close(node)
    if separators is None and max_whitespace == TIDY:
        separators = (", ?", ": ?")  # LLGuidance reads separators as regular expressions
    if separators is None:
        repeat = "+" if max_whitespace is None else f"{{1,{max_whitespace}}}"
        schema["x-guidance"] = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{repeat}"}
    else:
        item, key = separators
        schema["x-guidance"] = {"whitespace_flexible": False, "item_separator": item, "key_separator": key}
    if coerce_one_of:
        schema["x-guidance"]["coerce_one_of"] = True
    if any(_is_open(node) for _, node in json_schema.subschemas(schema)):
        # Without this, a listed name spelled with \u escapes would count as an unlisted one, with another schema.
        schema["x-guidance"]["json_allowed_escapes"] = 'nrbtf"\\'
    return json.dumps(schema)


def _leave_out(node: dict[str, Any], open_objects: bool) -> None:
    """Remove the keywords that are not enforced, unknown formats, and a `minProperties` that always holds, in place."""
    for key in UNKNOWN:
        node.pop(key, None)
    for key in (*_lost(node), *_uncounted(node, open_objects)):
        del node[key]
    if node.get("minProperties", 0) <= len(node.get("required", [])):
        node.pop("minProperties", None)
    if "format" in node and node["format"] not in FORMATS:
        del node["format"]
    if json_schema.looks_around(node.get("pattern")):
        del node["pattern"]
    for regex in [name for name in node.get("patternProperties", {}) if json_schema.looks_around(name)]:
        del node["patternProperties"][regex]
        node["additionalProperties"] = True  # otherwise the names that the pattern matches would be forbidden


def _spell(node: dict[str, Any]) -> None:
    """Replace regular expressions that LLGuidance would misread, in place."""
    if "pattern" in node:
        node["pattern"] = without_nul(node["pattern"])
    if "patternProperties" in node:
        node["patternProperties"] = {without_nul(p): value for p, value in node["patternProperties"].items()}


def _held_together(schema: Any) -> set[int]:
    """The `id`s of the schema objects that apply to the same value as another schema."""
    combined: set[int] = set()
    pending = [node for _, node in json_schema.subschemas(schema) if _num_parts(node) > 1]
    while pending:
        node = pending.pop()
        if id(node) in combined:
            continue
        combined.add(id(node))
        pending += _applied(schema, node)
    return combined


def _num_parts(node: dict[str, Any]) -> int:
    """The number of schemas that `node` applies to one value, its own keywords included."""
    has_keywords = any(
        key in json_schema.CHECKS and key not in (*APPLICATORS, "$defs", "definitions", "type")
        for key in node
    )
    return has_keywords + sum(len(node[key]) if key == "allOf" else 1 for key in APPLICATORS if key in node)


def _applied(schema: Any, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the subschemas that a node applies to the same value."""
    for key in ("allOf", "anyOf", "oneOf"):
        yield from (branch for branch in node.get(key, []) if isinstance(branch, dict))
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        target = json_schema.pointed(schema, reference[1:].split("/")[1:])
        if isinstance(target, dict):
            yield target


def _split(node: dict[str, Any]) -> None:
    """Turn a `oneOf` with disjoint branches into an `anyOf`, in place. LLGuidance itself detects disjoint branches only
    by their types."""
    if "oneOf" in node and "anyOf" not in node and json_schema.is_disjoint(node["oneOf"]):
        node["anyOf"] = node.pop("oneOf")


def _is_open(node: dict[str, Any]) -> bool:
    """Whether an object has patterns of names, or lists properties and allows other names, too."""
    if "patternProperties" in node:
        return True
    return bool(node.get("properties")) and node.get("additionalProperties", True) is not False


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
