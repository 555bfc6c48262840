"""Schemas, regular expressions and grammars that an attacker may send."""

from __future__ import annotations

import json
from typing import Any

# The name, the source, and part of the error message. None: the source is harmless here and compiles.
Case = tuple[str, Any, str | None]


def nested_arrays(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


def tower(depth: int) -> dict[str, Any]:
    """A schema that doubles with each level, if references are expanded."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"anyOf": [schema, {"type": "array", "items": schema}]}
    return schema


def reference_tower(depth: int) -> dict[str, Any]:
    """The same as a short schema with references."""
    definitions: dict[str, Any] = {"d0": {"type": "integer"}}
    for i in range(depth):
        reference = {"$ref": f"#/$defs/d{i}"}
        definitions[f"d{i + 1}"] = {"type": "object", "properties": {"a": reference, "b": reference}}
    return {"$defs": definitions, "$ref": f"#/$defs/d{depth}"}


def properties(count: int, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)}, **more}


def tag(content: Any) -> dict[str, Any]:
    return {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"},
    }


SCHEMAS: list[Case] = [
    ("nested 70 deep", nested_arrays(70), "nests 71 deep"),
    ("nested 5000 deep", nested_arrays(5000), "nested too deeply|nests"),
    ("enum of 20000", {"enum": [f"t{i}" for i in range(20000)]}, "20000 choices.*max_choices"),
    ("many enums", {"anyOf": [{"enum": list(range(i, i + 100))} for i in range(60)]}, "6000 choices"),
    ("3000 optional properties", properties(3000), "3000 properties.*max_properties"),
    ("counted properties", properties(400, minProperties=200), "80000 properties"),
    ("maxLength 1e6", {"type": "string", "maxLength": 10**6}, "1000000 positions.*max_repeat"),
    ("maxLength 1e400", '{"type":"string","maxLength":1e400}', "maxLength is inf"),
    ("maxLength NaN", '{"type":"string","maxLength":NaN}', "maxLength is nan"),
    ("minLength of 5000 digits", '{"minLength":' + "9" * 5000 + "}", "not valid JSON"),
    ("arrays that must be long in arrays that must be long",
     {"type": "array", "minItems": 9999, "items": {"type": "array", "minItems": 9999, "items": {"const": "x"}}},
     "shortest text of a part of it.*max_least_bytes"),
    ("minItems 1e9", {"type": "array", "items": {}, "minItems": 10**9}, "1000000000 positions"),
    ("bounds behind a reference", {"$ref": "#/x/y", "x": {"y": {"maxLength": 10**7}}}, "10000000 positions"),
    ("pattern that repeats repeats", {"type": "string", "pattern": "((a{1,99}){1,99}){1,99}"}, "970299 positions"),
    ("patternProperties that repeat", {"patternProperties": {"^(x{9,999}){999}$": {}}}, "998001 positions"),
    ("unbalanced pattern", {"type": "string", "pattern": "(((("}, "JSON schema"),
    ("reference to itself", {"$ref": "#"}, "can't be met"),
    ("references in a ring", {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
     "can't be met"),
    ("reference to nowhere", {"$ref": "#/$defs/a/b/c"}, "leads nowhere"),
    ("nothing is allowed", False, "nothing can satisfy"),
    ("empty enum", {"enum": []}, "a list, not empty"),
    ("bounds that exclude each other", {"type": "integer", "minimum": 5, "maximum": 4}, "above"),
    ("allOf of 40", {"allOf": [{"type": "object", "properties": {f"a{i}": {}}} for i in range(40)]}, None),
    ("oneOf of 300", {"oneOf": [properties(3, required=[f"p{i % 3}"]) for i in range(300)]}, None),
    ("references that double, 25 times", reference_tower(25), None),
    ("wide integers", {"type": "integer", "minimum": -(10**40), "maximum": 10**40}, "minimum limit"),
    ("a large multiple", {"type": "integer", "multipleOf": 999999937}, None),
    ("half a surrogate", '{"const": "\\ud800"}', "Failed to parse JSON"),
    ("NUL", {"const": "a\0b"}, None),
    ("no schema", "[1, 2, 3]", "a JSON schema is an object"),
    ("no JSON", '{"type": ', "not valid JSON"),
    ("a property that is called maxLength", properties(1) | {"required": ["maxLength"]}, None),
]  # fmt: skip

REGEXES: list[Case] = [
    ("{1,100000000}", "[ab]{1,100000000}", "100000000 positions"),
    ("{1,99999999999999999999}", "[ab]{1,99999999999999999999}", "positions|regex"),
    ("repeats of repeats", "((a{1,100}){1,100}){1,100}", "1000000 positions"),
    ("classical exponential", "((a+)+)+b", "takes longer than those before"),
    ("a?^n a^n", "(a?){300}a{300}", None),
    ("ambiguous", "(a|a|aa|aaa)*(a|aa)*(a|aa)*b", None),
    ("300 groups deep", "(" * 300 + "a" + ")" * 300, "nests 300 levels"),
    ("100000 groups deep", "(" * 100000, "chain of 100001 levels"),
    ("100000 open classes", "[" * 100000, "regex"),
    ("6000 alternatives", "|".join(f"a{i}" for i in range(6000)), "6000 choices"),
    ("300 KB", "a" * 300_000, "has 300000 bytes"),
    ("back-reference", r"(a+)\1", "regex"),
    ("look-ahead", "(?=a)b", "regex"),
    ("Unicode class", r"\p{L}+", "regex"),
    ("an empty class", r"[^\s\S]", "can't be met"),
    ("half a surrogate", "\ud800", "UTF-8|regex"),
    ("NUL", "a\0b", "regex|NUL"),
    ("backwards range", "[z-a]", "regex"),
    ("backwards repeat", "a{5,2}", "regex"),
]

GRAMMARS: list[Case] = [
    ("left recursion", 'root ::= root "a" | "a"', None),
    ("hidden left recursion", 'root ::= e root "a" | "a"\ne ::= ""', None),
    ("only itself", "root ::= root", "can't be met"),
    ("a ring", "root ::= a\na ::= b\nb ::= a", "can't be met"),
    ("an empty loop", 'root ::= ("" | "")* "a"', None),
    ("empty loops in loops", 'root ::= ((("")*)*)* "a"', None),
    ("a rule that is missing", 'root ::= "a" nowhere', "not defined"),
    ("no root", 'a ::= "a"', "root"),
    ("twice the same rule", 'root ::= "a"\nroot ::= "b"', "EBNF"),
    ("rules that double",
     "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)), 'r40 ::= "a"']),
     "shortest text of a part of it.*max_least_bytes"),
    ("a rule that never ends after one that does", 'root ::= "b" | "a" more\nmore ::= "x" more',
     "can't be met: its rule more"),
    ("{1,100000000}", 'root ::= ("a" | "b"){1,100000000}', "200000000 positions"),
    ("repeats of repeats", 'root ::= (("ab"{1,1000}){1,1000}){1,1000}', "2000000000 positions"),
    ("200 groups deep", "root ::= " + "(" * 200 + '"a"' + ")" * 200, "nests 200 levels"),
    ("6000 alternatives", "root ::= " + " | ".join(f'"a{i}"' for i in range(6000)), "6000 choices"),
    ("an open text", 'root ::= "a', "EBNF"),
    ("spaces in braces", "root ::= " + '"a"{' + " " * 50_000 + '"', "EBNF"),
    ("no grammar", "\x00\x01\x02", "EBNF"),
    ("nothing", "", "EBNF"),
]  # fmt: skip

TAGS: list[Case] = [
    ("a schema that counts", tag({"type": "json_schema", "json_schema": properties(400, minProperties=200)}),
     "80000 properties"),
    ("a pattern that repeats", tag({"type": "regex", "pattern": "(a{999}){999}"}), "998001 positions"),
    ("a grammar that repeats", tag({"type": "grammar", "grammar": 'root ::= ("a"{999}){999}'}), "998001 positions"),
    ("no tag", tag({"type": "nothing"}), "structural tag"),
    ("nested too deep", json.dumps(tag({"type": "any_text"})).replace('"<a>"', "[" * 3000), "not valid JSON"),
]  # fmt: skip

CASES: list[tuple[str, str, Any, str | None]] = [
    *(("json_schema", *case) for case in SCHEMAS),
    *(("regex", *case) for case in REGEXES),
    *(("ebnf", *case) for case in GRAMMARS),
    *(("structural_tag", *case) for case in TAGS),
]

LETTERS = "abcdefghijklmnopqrstuvwxyz"
