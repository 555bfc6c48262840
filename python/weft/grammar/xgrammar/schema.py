"""Prepares JSON schemas for XGrammar, and finds the keywords that XGrammar would silently ignore."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from weft.grammar.notes import Findings, Place
from weft.grammar.schema import structure as json_schema
from weft.grammar.schema.formats import PATTERNS, spell_format
from weft.grammar.schema.patterns import none_of
from weft.grammar.schema.write import without_void
from weft.grammar.xgrammar.lengths import named_length
from weft.grammar.xgrammar.patterns import named
from weft.grammar.xgrammar.utf8 import pattern_kept

FORMATS = set(PATTERNS)
IGNORED = {"not", "if", "then", "else", "contains", "minContains", "maxContains"}
IGNORED |= {"dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef"}
BOUNDS: tuple[str, ...] = (
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
BOUNDS += ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
SILENT: tuple[str, ...] = (
    "type",
    "title",
    "description",
    "default",
    "examples",
    "$defs",
    "definitions",
    "$id",
    "$schema",
)
SILENT += ("$comment", "deprecated", "readOnly", "writeOnly", "discriminator")

# XGrammar removes the characters that JSON must escape from negated classes.
NEGATED = re.compile(r"\[\^(?:\\.|[^\]\\])*+\]?", re.DOTALL)
ESCAPED = re.compile(r'["\x00-\x1f]|\\[\\nrtfv0cux"]')


def not_enforced(
    schema: Any,
    any_order: bool = False,
    open_objects: bool = False,
    places: Mapping[int, Place | None] | None = None,
    in_json: bool = True,
) -> Findings:
    """The keywords that XGrammar does not enforce, with their places. `places` maps the `id` of moved subschemas to
    their original places. Without `in_json`, strings are written raw, as in XML tool calls."""
    for place, node in json_schema.subschemas(schema, places=places):
        for description in _ignored(node, open_objects, in_json):
            yield place, description
        if not _are_texts(schema, node.get("propertyNames", False)):
            yield place, "propertyNames is not enforced where it does not say that names are strings"
        if any_order and (node.get("properties") or node.get("required")):
            # With any_order XGrammar only counts properties, and does not track which ones were written.
            yield place, "any_order: required is not enforced, and a property may come twice"


MAX_DEPTH = 20
PLAIN = re.compile(r"[ !#-.0-\[\]-~]*")  # texts that JSON would not escape

# Keywords that may state a value's type by themselves.
STATED = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
CLOSED = {"properties", "patternProperties", "propertyNames"}
SAID = {"additionalProperties", "unevaluatedProperties"}


def opened_schema(schema: Any, open_objects: bool = False) -> Any:
    """State explicitly what a schema leaves open, because XGrammar closes it by default. An object without listed
    properties allows any properties, and an array without an item schema allows any items. With `open_objects` this
    applies to all objects and arrays."""
    schema = json.loads(json.dumps(schema))
    for _, node in json_schema.subschemas(schema):
        _state_names(node)
        if not set(node) & (SAID if open_objects else SAID | CLOSED) and (
            node.get("type") == "object" or (open_objects and "properties" in node)
        ):
            node["additionalProperties"] = True
        closing = (
            {"items", "unevaluatedItems"} if open_objects else {"items", "unevaluatedItems", "prefixItems"}
        )
        if node.get("type") == "array" and not set(node) & closing:
            node["items"] = True
    return schema


def spelled_schema(schema: Any, in_json: bool = True) -> Any:
    """Replace formats by patterns, and patterns by the form that XGrammar must get. With `in_json` that is a
    placeholder (`weft.grammar.xgrammar.patterns`), also for length bounds; otherwise the pattern itself, in ASCII and
    without surrogates."""
    schema = json.loads(json.dumps(schema))
    for _, node in json_schema.subschemas(schema):
        if in_json:
            _keep_names_apart(node)
        if not {"minLength", "maxLength"} & set(node):
            spell_format(node)
        change = named if in_json else pattern_kept
        if "pattern" in node:
            node["pattern"] = change(node["pattern"])
        elif in_json and "format" not in node:
            _spell_length(node)
        regexes = node.get("patternProperties", {})
        if len(set(map(change, regexes))) == len(regexes) > 0:
            node["patternProperties"] = {change(regex): value for regex, value in regexes.items()}
    return schema


def _keep_names_apart(node: dict[str, Any]) -> None:
    """Restrict additional properties to a pattern that excludes the listed names, in place. By itself XGrammar excludes
    only names that JSON would not escape."""
    listed, others = node.get("properties", {}), node.get("additionalProperties", False)
    if others is False or all(PLAIN.fullmatch(name) for name in listed):
        return
    if not node.get("patternProperties") and node.get("propertyNames", True) in (True, {}):
        node["patternProperties"] = {none_of(listed): others}
        node["additionalProperties"] = False


def _spell_length(node: dict[str, Any]) -> None:
    """Replace the length bounds of a string by a placeholder pattern, in place."""
    types = node.get("type", [])
    low, high = int(node.get("minLength", 0)), node.get("maxLength")
    if "string" not in ([types] if isinstance(types, str) else types) or (low == 0 and high is None):
        return
    node.pop("minLength", None)
    node.pop("maxLength", None)
    node["pattern"] = named_length(low, None if high is None else int(high))


def _state_names(node: dict[str, Any]) -> None:
    """Add the type "string" to `propertyNames`, in place. Otherwise XGrammar allows any value as a name."""
    names = node.get("propertyNames")
    if isinstance(names, dict) and not set(names) & {"type", *STATED}:
        node["propertyNames"] = {"type": "string", **names}
    without_void(node)


def _are_texts(root: Any, names: Any, depth: int = 0) -> bool:
    """Whether the schema of names clearly allows only strings. XGrammar does not add that rule itself."""
    if not isinstance(names, dict) or depth > MAX_DEPTH:
        return names is False
    if "$ref" in names:
        reference = names["$ref"]
        known = reference.startswith("#/")
        return known and _are_texts(root, json_schema.target_of(root, reference), depth + 1)
    if "const" in names or "enum" in names:
        return all(isinstance(value, str) for value in names.get("enum", [names.get("const")]))
    branches = names.get("anyOf", names.get("oneOf"))
    if branches is not None:
        return all(_are_texts(root, branch, depth + 1) for branch in branches)
    if "allOf" in names:
        return any(_are_texts(root, branch, depth + 1) for branch in names["allOf"])
    # `_state_names` adds the missing type, but not within branches.
    return names.get("type", None if depth else "string") in ("string", ["string"])


def without_barred(schema: Any, open_objects: bool = False) -> Any:
    """Remove the properties whose schema is false, because XGrammar refuses a schema with such a property. Closed
    objects still don't allow these names."""
    if not any(_barred(node) for _, node in json_schema.subschemas(schema)):
        return schema
    schema = json.loads(json.dumps(schema))
    for _, node in json_schema.subschemas(schema):
        for name in _barred(node):
            del node["properties"][name]
            if not open_objects:
                node.setdefault("additionalProperties", False)
    return schema


def _barred(node: dict[str, Any]) -> list[str]:
    """The properties that are forbidden (false) and not required."""
    required = node.get("required", ())
    properties = node.get("properties", {})
    return [name for name, value in properties.items() if value is False and name not in required]


def _ignored(node: dict[str, Any], open_objects: bool, in_json: bool) -> Iterator[str]:
    yield from (f"{key} is not enforced" for key in node if key in IGNORED)
    if node.get("uniqueItems"):
        yield "uniqueItems is not enforced"
    types = node.get("type", [])
    types = [types] if isinstance(types, str) else types
    if node.get("format") in json_schema.FORMATS - FORMATS and (not types or "string" in types):
        yield f"format {json_schema.shown(node['format'])} is not known"
    reference = node.get("$ref")
    if reference is not None and reference != "#" and not reference.startswith("#/"):
        yield f"$ref {json_schema.shown(reference)} is not followed"
    if not types and not {"enum", "const", "$ref", "anyOf", "oneOf", "allOf"} & set(node):
        yield from (f"{key} is not enforced without a type" for key in BOUNDS if key in node)
    yield from _ignored_of_strings(node, in_json)
    yield from _ignored_of_numbers(node, types)
    yield from _ignored_combinations(node, types)
    yield from _ignored_of_objects(node, open_objects)


def _ignored_of_strings(node: dict[str, Any], in_json: bool) -> Iterator[str]:
    for key, regex in json_schema.regexes(node):
        if json_schema.looks_around(regex):
            yield f"the look-around of {key} {json_schema.shown(regex)} is not enforced"
        elif json_schema.has_inner_anchor(regex):
            yield f"{key} {json_schema.shown(regex)} is enforced without the anchors in its midst"
        elif not in_json and ESCAPED.search(NEGATED.sub("", regex)):
            yield f"{key} {json_schema.shown(regex)} is not enforced on characters that JSON escapes"
    pattern = node.get("pattern")
    bounds = [key for key in ("minLength", "maxLength") if key in node]
    for key in ("pattern", "format"):
        if bounds and (key == "pattern" or node.get("format") in FORMATS) and key in node:
            yield f"{' and '.join(bounds)} beside {key} is not enforced"
    if pattern is not None and node.get("format") in FORMATS:
        yield "pattern beside format is not enforced"


def _ignored_of_numbers(node: dict[str, Any], types: list[str]) -> Iterator[str]:
    yield from json_schema.inexact_values(node, json_schema.MAX_INT64)
    yield from json_schema.loosened_bounds(node, holds_integers=True)
    step = node.get("multipleOf")
    if step is None:
        return
    if "number" in types:
        yield "multipleOf is enforced on integers only"
    elif not json_schema.is_whole(step):
        yield "multipleOf is enforced only where it is an integer"
    elif set(node) & {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}:
        yield "multipleOf is not enforced beside bounds"


def _is_open(node: dict[str, Any], open_objects: bool) -> bool:
    """Whether an object may have properties that its schema does not list."""
    others = node.get("additionalProperties", open_objects or not node.get("properties"))
    return others is not False or bool(node.get("patternProperties"))


def names_and_others(schema: Any, open_objects: bool = False) -> bool:
    """Whether some object has patterns of names, or lists properties and allows other names, too."""
    return any(
        (node.get("properties") or "patternProperties" in node) and _is_open(node, open_objects)
        for _, node in json_schema.subschemas(schema)
    )


def _ignored_of_objects(node: dict[str, Any], open_objects: bool) -> Iterator[str]:
    named = node.get("properties", {})
    missing = [name for name in node.get("required", []) if name not in named]
    if missing:
        yield f"required {json_schema.shown(missing[0])} is not enforced, it is not among the properties"
    if (named or "patternProperties" in node) and node.get("propertyNames", True) not in (True, {}):
        yield "propertyNames is not enforced on the properties"
    barred = _barred(node)
    if barred and _is_open(node, open_objects):
        yield f"property {json_schema.shown(barred[0])} is not kept out where others may come"
    if _is_open(node, open_objects) and node.get("minProperties", 0) > max(1, len(node.get("required", []))):
        yield "minProperties is not enforced where names may come twice"
    if "patternProperties" in node and (named or len(node["patternProperties"]) > 1):
        yield "patternProperties is not enforced on names of the properties, or that two patterns match"


def _ignored_combinations(node: dict[str, Any], types: list[str]) -> Iterator[str]:
    if len(node.get("allOf", [])) > 1:
        yield "allOf of more than one schema is not enforced"
    if "oneOf" in node and not json_schema.is_disjoint(node["oneOf"]):
        yield "oneOf is enforced as anyOf"
    winner = next((key for key in STATED if key in node), None)
    if winner is None:
        return
    lost = [
        key for key in node if key not in (winner, *SILENT) and (key in json_schema.CHECKS or key == "const")
    ]
    if types and not _is_implied(types, winner, node[winner]):
        lost.append("type")
    if lost:
        yield f"{', '.join(lost)} beside {winner} is not enforced"


def _is_implied(types: list[str], winner: str, value: Any) -> bool:
    """Whether the enforced keyword `winner` clearly implies the ignored `type`."""
    if winner in ("const", "enum"):
        return all(json_schema.is_of(item, types) for item in (value if winner == "enum" else [value]))
    if winner == "$ref":
        return False
    return all(isinstance(branch, dict) and _is_within(branch.get("type"), types) for branch in value)


def _is_within(inner: Any, types: list[str]) -> bool:
    names = [inner] if isinstance(inner, str) else inner or [""]
    return all(name in types or (name == "integer" and "number" in types) for name in names)
