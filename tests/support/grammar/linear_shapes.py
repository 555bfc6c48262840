"""Texts that make careless readers slow: a shape makes a text of about so many bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Shape = Callable[[int], str]


def again(piece: str, begin: str = "", end: str = "") -> Shape:
    return lambda n: begin + piece * ((n - len(begin) - len(end)) // len(piece)) + end


def numbered(piece: str, begin: str = "", end: str = "") -> Shape:
    """`piece` again and again, with {i} for the number and {j} for the next."""
    size = len(piece.format(i=10_000, j=10_000))
    return lambda n: begin + "".join(piece.format(i=i, j=i + 1) for i in range(n // size)) + end


PIECES = (
    "\n",
    "\r\n",
    " ",
    "\t",
    "a",
    "é",
    "a[\n",
    "[",
    "]",
    "(",
    ")",
    "()",
    "{",
    "}",
    "{ ",
    "{1",
    "{1,",
    "a{1,9}",
    "\\",
)
PIECES += (
    '"',
    '""',
    '\\"',
    "/",
    "//",
    "/\\",
    "#",
    "# \n",
    "<",
    "<a",
    "<a>",
    "=",
    "stop ",
    "stop#\n",
    "|",
    "a|",
    "::=",
    "-",
)
PIECES += (
    "a-",
    "[a-",
    "[^",
    "*",
    "a*",
    "?",
    "(?",
    "(?=",
    "(?:",
    "a ::= ",
    "%json {",
    "$",
    "~",
    "~1",
    "\x00",
    "\u2028",
    "0",
)
TEXTS: dict[str, Shape] = {f"{piece!r} again": again(piece) for piece in PIECES}
TEXTS |= {
    f"{piece!r} behind {begin!r}": again(piece, begin)
    for begin in '"/[{(<\\'
    for piece in ('\\"', " ", "a", "9")
}
TEXTS |= {
    "a repeat of repeats": again("{999999999}", "a"),
    "an open comment": again("a", "#"),
    "groups": lambda n: "(" * (n // 2) + ")" * (n // 2),
}

RULES: dict[str, Shape] = {
    "a chain of GBNF": numbered("r{i} ::= r{j}\n", "root ::= r0\n"),
    "a star of GBNF": numbered('r{i} ::= "a"\n', "root ::= r0\n"),
    "GBNF of one rule": numbered(' | "a{i}"', 'root ::= "a"'),
    "a class of GBNF": again("a-b\\-", "root ::= [", "]"),
    "a literal of GBNF": again("\\n", 'root ::= "', '"'),
    "bounds of GBNF": again(" ", 'root ::= "a"{1,', "}"),
    "a chain of Lark": numbered("r{i}: r{j}\n", "start: r0\n"),
    "special tokens": again("<|a|> ", "start: "),
    "options": numbered('r{i}[capture]: "stop = 3"\n', "start: r0\n"),
}


def schema(made: Callable[[int], Any], size: int) -> Shape:
    """`made(count)` as JSON; each of `count` parts has about `size` bytes."""
    return lambda n: json.dumps(made(n // size))


LONG = "k" * 4000
SCHEMAS: dict[str, Shape] = {
    "a pattern of brackets": again("[", '{"pattern": "', '"}'),
    "a pattern of negated brackets": again("[^", '{"pattern": "', '"}'),
    "a pattern of classes": again("[\\\\S-a]", '{"pattern": "', '"}'),
    "properties": schema(lambda c: {"properties": {f"p{i}": {"type": "string"} for i in range(c)}}, 30),
    "properties in a row": schema(
        lambda c: {
            "type": "object",
            "properties": {f"p{i}": True for i in range(c)},
            "required": [f"p{i}" for i in range(c)],
        },
        24,
    ),
    "a long key": schema(lambda c: {"properties": {LONG: {"anyOf": [{"not": {}}] * c}}}, 12),
    "long keys": schema(
        lambda c: {"properties": {f"{LONG}{i}": {"not": {"enum": [i]}} for i in range(c)}}, 4040
    ),
    "one reference again": schema(
        lambda c: {"$defs": {"a": {"type": "integer"}}, "anyOf": [{"$ref": "#/$defs/a"}] * c}, 24
    ),
    "references to all": schema(
        lambda c: {
            "$defs": {f"d{i}": {"type": "integer"} for i in range(c)},
            "anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(c)],
        },
        60,
    ),
    "a chain of references": schema(
        lambda c: {
            "$defs": {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % c}"} for i in range(c)},
            "$ref": "#/$defs/d0",
        },
        34,
    ),
    "a long reference": schema(lambda c: {"$ref": "#/" + "a/" * c}, 2),
    "patterns": schema(
        lambda c: {"anyOf": [{"type": "string", "pattern": f"^a{i}{{1,9}}(b|c)*$"} for i in range(c)]}, 50
    ),
    "pattern properties": schema(
        lambda c: {"patternProperties": {f"^a{i}$": {"type": "string"} for i in range(c)}}, 30
    ),
    "an enumeration": schema(lambda c: {"enum": [f"v{i}" for i in range(c)]}, 10),
    "enumerations": schema(lambda c: {"anyOf": [{"enum": [i, f"{i}"]} for i in range(c)]}, 30),
    "constants that exclude each other": schema(lambda c: {"oneOf": [{"const": i} for i in range(c)]}, 18),
    "branches that do not": schema(
        lambda c: {"oneOf": [{"type": "string", "minLength": i} for i in range(c)]}, 40
    ),
    "all of many": schema(lambda c: {"allOf": [{"minimum": i} for i in range(c)]}, 20),
    "all of many objects": schema(
        lambda c: {"allOf": [{"properties": {f"p{i}": {"type": "null"}}} for i in range(c)]}, 40
    ),
    "not": schema(lambda c: {"anyOf": [{"not": {"type": "string"}}] * c}, 28),
    "conditions": schema(
        lambda c: {
            "anyOf": [
                {"if": {"const": i}, "then": {"type": "integer"}, "else": {"type": "string"}}
                for i in range(c)
            ]
        },
        75,
    ),
    "unknown keywords": schema(lambda c: {f"x-{i}": i for i in range(c)}, 16),
    "a deep array": again("[", '{"enum": ', ""),
    "a deep schema": lambda n: '{"not":' * (n // 8) + "{}" + "}" * (n // 8),
    "strings of quotes": again('\\"', '{"const":"', '"}'),
    "digits": again("9", '{"const":', "}"),
    "numbers": again("9,", '{"enum":[', "9]}"),
    "escapes": again("\\u0000", '{"const":"', '"}'),
}


def tag(made: Callable[[int], str]) -> Shape:
    """A structural tag around a text of JSON."""
    return lambda n: '{"type":"structural_tag","format":' + made(n) + "}"


TAGS: dict[str, Shape] = {
    f"a tag around {name}": tag(
        lambda n, shape=shape: '{"type":"json_schema","json_schema":' + shape(n) + "}"
    )  # type: ignore[misc]
    for name, shape in SCHEMAS.items()
} | {
    "tags": tag(
        lambda n: json.dumps(
            {
                "type": "triggered_tags",
                "triggers": ["<"],
                "tags": [
                    {"type": "tag", "begin": f"<a{i}>", "content": {"type": "any_text"}, "end": "<"}
                    for i in range(n // 90)
                ],
            }
        )
    ),
    "structures of the older form": lambda n: json.dumps(
        {
            "triggers": [f"<{i}=" for i in range(n // 60)],
            "structures": [{"begin": f"<{i}=a>", "schema": "{}", "end": "<"} for i in range(n // 60)],
        }
    ),
}
