"""What is wrong with a JSON schema before a grammar library sees it, and what XGrammar would ignore in
silence.

`check` raises `GuideError` for a schema that is none (a keyword with a value of the wrong type, a reference
to nowhere, bounds that exclude each other) and returns what XGrammar does not enforce, one line each, with
where.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

from weft.errors import GuideError

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
FORMATS = {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
FORMATS |= {"uri", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer"}
IGNORED = {"not", "if", "then", "else", "contains", "minContains", "maxContains"}
IGNORED |= {"dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef", "$recursiveRef"}
IGNORED |= {"contentEncoding", "contentMediaType", "contentSchema"}
OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
LOOKAROUND = re.compile(r"\(\?(=|!|<=|<!)")
Path = tuple[str | int, ...]


def _is_count(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and value >= 0
        and value == int(value)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) and value else [value]
    return all(isinstance(name, str) and name in TYPES for name in names)


def _is_schema(value: object) -> bool:
    return isinstance(value, dict | bool)


def _is_schemas(value: object) -> bool:
    return isinstance(value, dict) and all(_is_schema(item) for item in value.values())


def _is_schema_list(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_schema(item) for item in value)


EXPECTED: list[tuple[str, Callable[[object], bool], str]] = [
    ("type", _is_type, "one of " + ", ".join(TYPES) + ", or a list of them"),
    ("properties patternProperties $defs definitions dependentSchemas", _is_schemas, "an object of schemas"),
    ("allOf anyOf oneOf prefixItems", _is_schema_list, "a list of schemas, not empty"),
    ("not if then else contains propertyNames additionalProperties", _is_schema, "a schema"),
    ("unevaluatedProperties unevaluatedItems additionalItems", _is_schema, "a schema"),
    ("items", lambda value: _is_schema(value) or _is_schema_list(value), "a schema"),
    ("required", _is_strings, "a list of strings"),
    ("enum", lambda value: isinstance(value, list) and bool(value), "a list, not empty"),
    (
        "minLength maxLength minItems maxItems minProperties maxProperties",
        _is_count,
        "a whole number, 0 or more",
    ),
    ("minimum maximum", _is_number, "a number"),
    ("multipleOf", lambda value: _is_number(value) and value > 0, "a number above 0"),  # type: ignore[operator]
    ("pattern format $ref", lambda value: isinstance(value, str), "a string"),
    ("uniqueItems", lambda value: isinstance(value, bool), "true or false"),
]
CHECKS = {name: (test, words) for names, test, words in EXPECTED for name in names.split()}
BOUNDS = [
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
]


def check(schema: Any) -> list[str]:
    """What XGrammar ignores in `schema`; raises `GuideError` where it is no schema."""
    if not _is_schema(schema):
        raise GuideError(f"a JSON schema is an object (or true), not {type(schema).__name__}")
    ignored: list[str] = []
    for path, node in subschemas(schema):
        _check_node(schema, path, node)
        ignored += [f"{where(path)}: {what}" for what in _ignored(node)]
    return ignored


def subschemas(schema: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every schema object inside `schema`, itself included, with where it is."""
    pending: list[tuple[Path, Any]] = [((), schema)]
    while pending:
        path, node = pending.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for key, value in node.items():
            test = CHECKS.get(key, (None,))[0]
            if test is _is_schemas and isinstance(value, dict):
                pending += [((*path, key, name), item) for name, item in value.items()]
            elif isinstance(value, list) and (test is _is_schema_list or key == "items"):
                pending += [((*path, key, i), item) for i, item in enumerate(value)]
            elif test is _is_schema or key == "items":
                pending.append(((*path, key), value))


def where(path: Path) -> str:
    """A path as a JSON pointer; the root is #."""
    return "#" + "".join("/" + str(part) for part in path)


def _check_node(root: Any, path: Path, node: dict[str, Any]) -> None:
    for key, value in node.items():
        test, words = CHECKS.get(key, (None, ""))
        if test is not None and not test(value):
            raise GuideError(f"JSON schema at {where(path)}: {key} is {value!r}; it must be {words}")
    for low, high in BOUNDS:
        if low in node and high in node and node[low] > node[high]:
            raise GuideError(
                f"JSON schema at {where(path)}: {low} {node[low]} is above {high} {node[high]}; "
                "nothing can satisfy that"
            )
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        target = root
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdigit() and int(name) < len(target):
                target = target[int(name)]
            else:
                raise GuideError(f"JSON schema at {where(path)}: $ref {reference!r} leads nowhere")


def _ignored(node: dict[str, Any]) -> Iterator[str]:
    yield from (f"{key} is not enforced" for key in node if key in IGNORED)
    if node.get("uniqueItems"):
        yield "uniqueItems is not enforced"
    types = node.get("type", [])
    types = [types] if isinstance(types, str) else types
    if "format" in node and node["format"] not in FORMATS and (not types or "string" in types):
        yield f"format {node['format']!r} is not known"
    reference = node.get("$ref")
    if reference is not None and reference != "#" and not reference.startswith("#/"):
        yield f"$ref {reference!r} is not followed"
    pattern = node.get("pattern")
    if pattern is not None and LOOKAROUND.search(pattern):
        yield f"the look-around of pattern {pattern!r} is not enforced"
    if pattern is not None and ("minLength" in node or "maxLength" in node):
        yield "minLength and maxLength are not enforced beside pattern"
    if "multipleOf" in node and "number" in types:
        yield "multipleOf is enforced on integers only"
    if not types and not {"enum", "const", "$ref", "anyOf", "oneOf", "allOf"} & set(node):
        yield from (
            f"{key} is not enforced without a type"
            for keys in OF_TYPE.values()
            for key in keys
            if key in node
        )
    yield from _ignored_combinations(node)
    known = node.get("properties", {})
    missing = [name for name in node.get("required", []) if name not in known]
    if missing and node.get("additionalProperties") is not False and not node.get("patternProperties"):
        yield f"required {missing[0]!r} is not enforced, it is not among the properties"


def _ignored_combinations(node: dict[str, Any]) -> Iterator[str]:
    if len(node.get("allOf", [])) > 1:
        yield "allOf of more than one schema is not enforced"
    if "oneOf" in node and not is_disjoint(node["oneOf"]):
        yield "oneOf is enforced as anyOf"
    winner = next((key for key in ("$ref", "const", "enum", "anyOf", "oneOf", "allOf") if key in node), None)
    silent = {"type", "title", "description", "default", "examples", "$defs", "definitions", "$id", "$schema"}
    silent |= {"$comment", "deprecated", "readOnly", "writeOnly", "discriminator"}
    if winner is not None:
        lost = [
            key for key in node if key != winner and key not in silent and (key in CHECKS or key == "const")
        ]
        if lost:
            yield f"{', '.join(lost)} beside {winner} is not enforced"


def is_disjoint(branches: list[Any]) -> bool:
    """Whether no value can be of two branches, as far as their types and constants show."""
    seen: set[object] = set()
    for branch in branches:
        if not isinstance(branch, dict):
            return False
        values = branch.get("enum", [branch["const"]] if "const" in branch else None)
        kinds = branch.get("type", [])
        keys = (
            [repr(value) for value in values]
            if values
            else [kinds]
            if isinstance(kinds, str)
            else list(kinds)
        )
        keys = ["number" if key == "integer" else key for key in keys]
        if not keys or seen & set(keys):
            return False
        seen |= set(keys)
    return True
