"""Checks JSON schemas before a grammar library sees them (`check`), and has helpers to read their parts.

Errors are a keyword with a value of the wrong type, a dangling reference, and bounds that exclude each other.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from weft.errors import GuideError
from weft.grammar.notes import Findings, Place, shortened, where

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
FORMATS = {
    "date",
    "time",
    "date-time",
    "duration",
    "email",
    "idn-email",
    "hostname",
    "idn-hostname",
    "ipv4",
    "ipv6",
}
FORMATS |= {"uuid", "uri", "uri-reference", "uri-template", "iri", "iri-reference", "regex"}
FORMATS |= {"json-pointer", "relative-json-pointer"}
"""The formats of the specification. Validators ignore any other format, which is only an annotation."""
MAX_VALUE = 80
MAX_KEYWORD = 32
"""Characters of a name that is compared with the keywords."""
MAX_UNKNOWN = 100
"""Unknown names of a schema that are compared with the keywords, which bounds the time."""
SIMILAR = 0.84
"""The lowest ratio of `get_close_matches` for a misspelled keyword: "requird" passes, "formatter" does not."""
UNCHECKED = {"const", "title", "description", "default", "examples", "dependencies", "contentSchema"}
UNCHECKED |= {"discriminator", "$comment", "$id", "$schema", "$anchor"}
"""Keywords with any value, or an object that `CHECKS` does not test."""
CLASS_OR_ESCAPE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*+\]?", re.DOTALL)
LOOKAROUND = re.compile(r"\(\?(=|!|<=|<!)")
INDEX = re.compile(r"[0-9]{1,9}")


def _is_count(value: object) -> bool:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return whole and not isinstance(value, bool) and value >= 0  # type: ignore[operator]


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
CONSTRAINTS = {name.lower(): name for name in CHECKS if name not in ("$defs", "definitions", "$ref")}
"""The keywords of `CHECKS` that constrain values, by their lower-case form."""
BOUNDS = [
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
]


def check(schema: Any) -> None:
    """Raise `GuideError` for an invalid schema."""
    if not _is_schema(schema):
        raise GuideError(f"a JSON schema is an object (or true), not {type(schema).__name__}")
    for place, node in subschemas(schema):
        _check_node(schema, place, node)


def misspelled(schema: Any) -> Findings:
    """Yield each unknown keyword that resembles a keyword of JSON Schema and has a value which that keyword may have.
    The specification ignores unknown keywords, so a misspelled one would silently constrain nothing."""
    if isinstance(schema, dict) and schema and all(_is_named_schema(*item) for item in schema.items()):
        yield None, '"properties" is missing; write {"type": "object", "properties": {...}}'
    unknown: set[str] = set()
    for place, node in subschemas(schema):
        for key, value in node.items():
            # Names such as "x-items" and "$items" are extensions.
            is_word = key not in CHECKS and len(key) <= MAX_KEYWORD and key.isalpha()
            if not is_word or (key not in unknown and len(unknown) == MAX_UNKNOWN):
                continue
            unknown.add(key)
            keyword = _similar_keyword(key.lower())
            if keyword is not None and CHECKS[keyword][0](value):
                yield place, f"{key} is not a keyword, but {keyword} is"


@functools.lru_cache(maxsize=1024)
def _similar_keyword(name: str) -> str | None:
    """The keyword that differs from a lower-case name by few letters, or by their order only."""
    transposed = [keyword for keyword in CONSTRAINTS if sorted(keyword) == sorted(name)]
    close = transposed or get_close_matches(name, CONSTRAINTS, n=1, cutoff=SIMILAR)
    return CONSTRAINTS[close[0]] if close else None


def _is_named_schema(name: str, value: object) -> bool:
    """Whether an entry of a schema looks like a property: a name that is not a keyword, and a type or a schema that
    has one."""
    of_type = value.get("type") if isinstance(value, dict) else value
    return name not in CHECKS and name not in UNCHECKED and isinstance(of_type, str) and of_type in TYPES


def check_spelling(schema: Any) -> None:
    """Raise `GuideError` for the first misspelled keyword."""
    for place, description in misspelled(schema):
        raise GuideError(
            f"JSON schema at {where(place)}: {description}. Correct it, or give strict=False (--no-strict), which "
            "ignores it"
        )


def subschemas(
    schema: Any, within: Place | None = None, places: Mapping[int, Place | None] | None = None
) -> Iterator[tuple[Place | None, dict[str, Any]]]:
    """Yield `schema` and every schema object inside it, each with its place. `within` is the place of `schema`.
    `places` overrides the places of objects, by `id`, for those that were moved."""
    places = places or {}
    pending: list[tuple[Place | None, Any]] = [(within, schema)]
    while pending:
        place, node = pending.pop()
        if not isinstance(node, dict):
            continue
        place = places.get(id(node), place)
        yield place, node
        for key, value in node.items():
            test = CHECKS.get(key, (None,))[0]
            inner = Place(place, key)
            if test is _is_schemas and isinstance(value, dict):
                pending += [(Place(inner, name), item) for name, item in value.items()]
            elif isinstance(value, list) and (test is _is_schema_list or key == "items"):
                pending += [(Place(inner, i), item) for i, item in enumerate(value)]
            elif test is _is_schema or key == "items":
                pending.append((inner, value))


def _check_node(root: Any, place: Place | None, node: dict[str, Any]) -> None:
    for key, value in node.items():
        test, expected = CHECKS.get(key, (None, ""))
        if test is not None and not test(value):
            raise GuideError(f"JSON schema at {where(place)}: {key} is {shown(value)}; it must be {expected}")
    for low, high in BOUNDS:
        if low in node and high in node and node[low] > node[high]:
            raise GuideError(
                f"JSON schema at {where(place)}: {low} {node[low]} is above {high} {node[high]}; "
                "nothing can satisfy that"
            )
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        try:
            target_of(root, reference)
        except KeyError:
            raise GuideError(
                f"JSON schema at {where(place)}: $ref {shown(reference)} leads nowhere"
            ) from None


def target_of(root: Any, reference: str) -> Any:
    """The target of a `$ref` of the form `#/...`. Raises `KeyError` if it is dangling."""
    return pointed(root, reference[2:].split("/"))


def pointed(root: Any, parts: Iterable[str]) -> Any:
    """The target of a JSON pointer, given as its parts with escapes. Raises `KeyError` if it is dangling."""
    target = root
    for part in parts:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and INDEX.fullmatch(name) and int(name) < len(target):
            target = target[int(name)]
        else:
            raise KeyError(part)
    return target


def is_of(value: object, types: list[str]) -> bool:
    """Whether a value has one of the types."""
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, int | float):
        return "number" in types or ("integer" in types and is_whole(value))
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return names[type(value)] in types


def is_whole(value: float) -> bool:
    """Whether a number is an integer."""
    return isinstance(value, int) or value.is_integer()


def has_inner_anchor(pattern: str) -> bool:
    """Whether a pattern has `^` or `$` inside, and not only at its ends."""
    plain = CLASS_OR_ESCAPE.sub("x", pattern)
    return "^" in plain[1:] or "$" in plain[:-1]


def looks_around(pattern: object) -> bool:
    """Whether a pattern has look-ahead or look-behind, which the grammar libraries' automata do not support."""
    return isinstance(pattern, str) and LOOKAROUND.search(pattern) is not None


def regexes(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the keyword and the regular expression for each pattern of a schema object."""
    if isinstance(node.get("pattern"), str):
        yield "pattern", node["pattern"]
    yield from (("patternProperties", pattern) for pattern in node.get("patternProperties", {}))


def shown(value: object) -> str:
    """A value of a schema, shortened for a message."""
    return shortened(repr(value), MAX_VALUE)


def is_disjoint(branches: list[Any]) -> bool:
    """Whether types and constants prove that no value satisfies two of the branches."""
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


MAX_INT64 = (1 << 63) - 1
EXACT_IN_DOUBLES = 1 << 53


def inexact_values(node: dict[str, Any], exact: int) -> Iterator[str]:
    """Yield a note for each integer in `enum` or `const` that a library would change. A library stores integers above
    `exact` as doubles."""
    for value in (*node.get("enum", ()), node.get("const")):
        for number in _integers(value):
            if abs(number) > exact and _as_double(number) != number:
                yield f"value {shown(number)} has more digits than a double holds"


def loosened_bounds(node: dict[str, Any], holds_integers: bool = False) -> Iterator[str]:
    """Yield a note for each bound that a library would loosen, because it stores bounds as doubles. For the type
    integer the library also clamps them to 64 bits. With `holds_integers` it stores the minimum and maximum of integers
    exactly."""
    is_integer = node.get("type") == "integer"
    for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"):
        bound = node.get(key)
        if type(bound) is not int or (is_integer and holds_integers and key != "multipleOf"):
            continue
        as_double = _as_double(bound)
        if is_integer and key != "multipleOf":
            as_double = max(-MAX_INT64 - 1, min(as_double, MAX_INT64))
        if (
            as_double < bound
            if "inimum" in key
            else as_double > bound
            if "aximum" in key
            else as_double != bound
        ):
            yield f"{key} {shown(bound)} has more digits than a double holds"


def _as_double(number: int) -> float:
    try:
        return int(float(number))
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _integers(value: Any) -> Iterator[int]:
    pending = [value]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part
        elif type(part) is int:
            yield part
