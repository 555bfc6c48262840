"""Tools with parameters of every kind, and values for them."""

from __future__ import annotations

import random
from typing import Any

from weft import Guide
from weft.grammar.kinds.tools import Reasoning

TEXTS = [
    "",
    " ",
    "plain",
    "two words",
    "\n",
    "a\nb",
    "}",
    '{"a": [1, "',
    '"quoted"',
    "back\\slash",
    "größe 漢字 🙂",
    "12",
    "null",
    "True",
    "[1]",
    "a<b",
    "<",
    "</",
    "<think>",
    "</think>",
    "</tool_call>",
    "}\n</tool_call>",
    "</parameter>",
    "</arg_value>",
    "</cofl:value>",
    "</cofl:tool_call>",
    "<|call|>",
    "<|tool_call_end|>",
    "<|close|>argument<|sep|>",
    "]<]minimax[>[",
    "\n```<｜tool▁call▁end｜>",  # noqa: RUF001
    "</｜DSML｜parameter>",  # noqa: RUF001
    "</｜DSML｜invoke>\n",  # noqa: RUF001
    '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>',
]
"""Values of string parameters. Some can't be written everywhere in some formats, whose guides refuse them."""

STRING = {"type": "string"}
TAGS = {"type": "array", "items": STRING}
DEEP = {
    "type": "object",
    "properties": {
        "p": STRING,
        "q": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "r": {"type": "array", "items": {"type": "object", "properties": {"x": STRING}, "required": ["x"]}},
    },
    "required": ["p"],
}


def function(name: str, **properties: Any) -> dict[str, Any]:
    """Make a tool. The schema's description is the tool's name, so that a schema reveals its tool."""
    parameters = {"type": "object", "description": name, "properties": properties}
    required = [key for key in properties if not key.startswith("may")]
    closed = {**parameters, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": closed}}


TOOLS = [
    function("get", q=STRING, n={"type": "integer"}),
    function("get_all", tags=TAGS, deep=DEEP, flag={"type": "boolean"}),
    function("get.it:now"),
    function(
        "name",
        mode={"enum": ["b c", "12", "null"]},
        höhe={"type": "number"},
        may_be={"type": ["string", "null"]},
        may={"type": "string", "pattern": "^[a-z ]+$"},
    ),
]


def tools_of(style: str) -> list[dict[str, Any]]:
    """Return the tools with the parameters that a format supports."""
    if style != "minimax_m3":  # minimax_m3 does not support patterns
        return TOOLS
    *others, last = TOOLS
    properties = dict(last["function"]["parameters"]["properties"], may=STRING)
    return [*others, function("name", **properties)]


def value_of(schema: dict[str, Any], rng: random.Random) -> Any:
    """Draw a value that satisfies a schema of these tools."""
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema["type"]
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if kind == "string":
        return rng.choice(["plain", "two words"] if "pattern" in schema else TEXTS)
    if kind == "array":
        return [value_of(schema["items"], rng) for _ in range(rng.randrange(3))]
    if kind == "object":
        return {
            key: value_of(each, rng)
            for key, each in schema["properties"].items()
            if key in schema["required"] or rng.random() < 0.5
        }
    plain = {"integer": [0, -7, 12345], "number": [0.5, 3, -1e-7], "boolean": [True, False], "null": [None]}
    return rng.choice(plain[kind])


def guide_of(style: str, required: bool | str, reasoning: Reasoning, parallel: bool) -> Guide:
    """Return the guide for calls of these tools."""
    return Guide.tools(
        tools_of(style),
        style=style,
        required=required,
        reasoning=reasoning,
        parallel=parallel,
        max_whitespace=2,
    )
