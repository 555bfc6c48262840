"""More than a hundred schemas, regexes, grammars and choices."""

from __future__ import annotations

import itertools
from typing import Any

Schema = dict[str, Any]


def _object(properties: dict[str, Schema], required: list[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


SCALARS: dict[str, Schema] = {
    "string": {"type": "string"},
    "short": {"type": "string", "maxLength": 6},
    "long": {"type": "string", "minLength": 8, "maxLength": 20},
    "integer": {"type": "integer"},
    "percent": {"type": "integer", "minimum": 0, "maximum": 100},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "null": {"type": "null"},
    "level": {"enum": ["low", "middle", "high"]},
    "mixed": {"enum": [1, "one", None, True]},
    "const": {"const": "fixed"},
    "date": {"type": "string", "format": "date"},
    "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "maybe": {"type": ["string", "null"]},
}


def _schemas() -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for name, schema in SCALARS.items():
        found[f"object/{name}"] = _object({name: schema})
        found[f"array/{name}"] = {"type": "array", "items": schema, "minItems": 1, "maxItems": 3}
    for a, b in itertools.pairwise(SCALARS):
        found[f"pair/{a}+{b}"] = _object({a: SCALARS[a], b: SCALARS[b]})
    for a, b in list(itertools.pairwise(SCALARS))[::3]:
        found[f"optional/{a}+{b}"] = _object({a: SCALARS[a], b: SCALARS[b]}, required=[a])
    person = _object({"name": SCALARS["string"], "age": SCALARS["percent"]})
    found["nested"] = _object({"person": person, "active": SCALARS["flag"]})
    found["nested/twice"] = _object({"outer": _object({"inner": _object({"value": SCALARS["number"]})})})
    found["list/of/objects"] = _object(
        {"people": {"type": "array", "items": person, "minItems": 1, "maxItems": 2}}
    )
    found["tuple"] = {"type": "array", "prefixItems": [SCALARS["string"], SCALARS["integer"]], "items": False}
    found["definitions"] = {
        "$defs": {"point": _object({"x": SCALARS["percent"], "y": SCALARS["percent"]})},
        **_object({"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}}),
    }
    found["recursive"] = {
        "$defs": {
            "node": _object(
                {"v": SCALARS["percent"], "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}
            )
        },
        "$ref": "#/$defs/node",
    }
    for name in ("percent", "level", "flag", "short", "date"):
        found[f"nested/{name}"] = _object({"outer": _object({name: SCALARS[name]}), name: SCALARS[name]})
        found[f"rows/{name}"] = {
            "type": "array",
            "items": _object({name: SCALARS[name]}),
            "minItems": 2,
            "maxItems": 2,
        }
    found["map"] = {"type": "object", "additionalProperties": {"type": "integer"}}
    return found


SCHEMAS = _schemas()

REGEXES = [
    r"[a-z]+",
    r"[0-9]{3}",
    r"(yes|no|maybe)",
    r"[A-Z][a-z]{2,8}",
    r"\d{4}-\d{2}-\d{2}",
    r"\d{1,3}(\.\d{1,3}){3}",
    r"[a-z0-9]+@[a-z]+\.(org|com)",
    r"(red|green|blue)( (red|green|blue)){0,3}",
    r"-?(0|[1-9]\d*)(\.\d+)?",
    r"#[0-9a-f]{6}",
    r"[^x]{1,12}",
    r".{5,10}",
    r"(ab)*c",
    r"a?b?c?d",
    r"(0|1)+",
    r"\+?[0-9]( ?[0-9]){5,9}",
    r"v\d+\.\d+\.\d+",
    r"[A-Za-z ]{1,20}\.",
    r"\((\d+), (\d+)\)",
    r"[aeiou]{2}[bcd]{2}[aeiou]{2}",
    r"(Mon|Tue|Wed|Thu|Fri) \d{1,2}",
    r"[一-龥]{2}",
    r"\w+( \w+){1,3}",
    r"(a|b(c|d(e|f)))+",
    r"\"[^\"]{0,10}\"",
    r"<[a-z]+>[^<]{1,8}</[a-z]+>",
    r"[ \t]*x[ \t]*",
    r"(?:foo|bar)-(?:baz|qux)",
    r"[0-5]?\d:[0-5]\d",
    r"(true|false)(, (true|false)){2}",
]

GRAMMARS = {
    "sum": 'root ::= term ("+" term)*\nterm ::= [0-9]+\n',
    "list": 'root ::= "[" item ("," item)* "]"\nitem ::= "a" | "b" | root\n',
    "call": 'root ::= name "(" name ("," name)? ")"\nname ::= [a-z] [a-z] [a-z]?\n',
    "query": 'root ::= "SELECT " column " FROM users"\ncolumn ::= "id" | "name" | "*"\n',
}

CHOICES = [
    ["yes", "no"],
    ["Berlin", "Bern", "Bernau"],
    ["a", "aa", "aaa"],
    ["on", "off", "unknown", "unknown state"],
]

# (kind, argument). The kind is the name of a constructor of `weft.grammar.guide.Guide`.
GUIDES: list[tuple[str, Any]] = [
    *(("json_schema", schema) for schema in SCHEMAS.values()),
    *(("regex", pattern) for pattern in REGEXES),
    *(("ebnf", grammar) for grammar in GRAMMARS.values()),
    *(("choice", choice) for choice in CHOICES),
    ("json", None),
]

assert len(GUIDES) >= 100, len(GUIDES)

UNIQUE_ITEMS = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 3, "maxItems": 3, "uniqueItems": True}
"""A schema that no answer satisfies, and that no library fully enforces."""
NOT_UNIQUE = "#: uniqueItems is not enforced"
"""The note about `UNIQUE_ITEMS`."""
