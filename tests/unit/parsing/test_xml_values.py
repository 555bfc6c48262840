"""Values that stand in XML: which of what they may mean they mean, by the schema and by what they say of themselves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.parsing.reading import read
from weft.parsing import AnswerParser

STRING, NUMBER, NULL = {"type": "string"}, {"type": "number"}, {"type": "null"}
REFERRING = {
    "$defs": {"tree": {"type": "object", "properties": {"n": NUMBER, "l": {"$ref": "#/$defs/tree"}}}},
    "properties": {"v": {"$ref": "#/$defs/tree"}},
}


def calls(style: str, begin: str, schema: Any, end: str) -> dict[str, Any]:
    """A structural tag of one call of `f`."""
    content = {"type": "json_schema", "style": style, "json_schema": schema}
    return {"format": {"type": "tag", "begin": begin, "content": content, "end": end}}


def arguments(style: str, text: str, schema: Any, is_whole: bool = True) -> Any:
    tag = calls(style, "<f>", schema, "<end>")
    answer = read(lambda: AnswerParser.of_tools(tag, [{"name": "f"}]), f"<f>{text}<end>")
    (call,) = answer.calls
    assert call.is_whole == is_whole
    return json.loads(call.arguments) if is_whole else call.arguments


def value(text: str, schema: Any) -> Any:
    """Of a parameter in Qwen's style."""
    whole = schema if schema is REFERRING else {"properties": {"v": schema}}
    return arguments("qwen_xml", f"\n<parameter=v>{text}</parameter>\n", whole)["v"]


@pytest.mark.parametrize(
    ("text", "schema", "meant"),
    [
        ("\na b\n", STRING, "a b"),
        ("\n\na\n\n", STRING, "\na\n"),
        (" a\n", STRING, " a\n"),
        ("12", STRING, "12"),
        ("", STRING, ""),
        ("\nab\n", {"type": "string", "minLength": 4}, "\nab\n"),
        ("12", NUMBER, 12),
        ("\n12\n", {"type": "integer"}, 12),
        ("1e400", NUMBER, float("inf")),
        ("True", {"type": "boolean"}, True),
        ("\nNone\n", {"type": ["integer", "null"]}, None),
        ("null", {"type": ["string", "null"]}, None),
        ("nil", {"type": ["string", "null"]}, "nil"),
        ("12", {"anyOf": [STRING, NUMBER]}, 12),
        ("1-2", {"anyOf": [STRING, NUMBER]}, "1-2"),
        ("12", {"enum": ["12", "13"]}, "12"),
        (" 12 ", {"enum": ["12", 13]}, "12"),
        (" 13 ", {"enum": ["12", 13]}, 13),
        ("3", {"anyOf": [{"type": "integer", "minimum": 5}, STRING]}, "3"),
        ('{"a": "</parameter>"}', {"type": "object"}, {"a": "</parameter>"}),
        ('["</parameter>", {"b": "\\"]}"}]', {"type": "array"}, ["</parameter>", {"b": '"]}'}]),
        ('{"n": 1, "l": {"n": 2}}', REFERRING, {"n": 1, "l": {"n": 2}}),
        ("{'a': \"1}", {"type": "object"}, "{'a': \"1}"),
        ("[1, 2", {"type": "array"}, "[1, 2"),
        ("abc", {"type": "integer"}, "abc"),
        ("NaN", NUMBER, "NaN"),
        ("[" * 5000 + "]" * 5000, {}, "[" * 5000 + "]" * 5000),
        ("[1]", {}, [1]),
        ("[1", {}, "[1"),
        ('"a"', True, "a"),
        ("a", {"$ref": "#/nowhere"}, "a"),
        ("12", {"type": "string", "pattern": "^[0-9]+$"}, "12"),
    ],
)
def test_a_value_is_what_its_schema_takes(text: str, schema: Any, meant: Any) -> None:
    assert value(text, schema) == meant


def test_numbers_are_as_they_were_written() -> None:
    digits = "1234567890" * 5
    text = f"<parameter=v>{digits}.10</parameter><parameter=w>[{digits}]</parameter>"
    tag = calls("qwen_xml", "<f>", {"properties": {"v": NUMBER, "w": {"type": "array"}}}, "<end>")
    (call,) = read(lambda: AnswerParser.of_tools(tag, [{"name": "f"}]), f"<f>{text}<end>").calls
    assert call.arguments == f'{{"v": {digits}.10, "w": [{digits}]}}'


@pytest.mark.parametrize(
    ("style", "text", "schema", "meant"),
    [
        (
            "deepseek_xml",
            '<\uff5cDSML\uff5cparameter name="v" string="true">12</\uff5cDSML\uff5cparameter>',
            {},
            "12",
        ),
        (
            "deepseek_xml",
            '<\uff5cDSML\uff5cparameter name="v" string="false">12</\uff5cDSML\uff5cparameter>',
            {},
            12,
        ),
        ("deepseek_xml", '<\uff5cDSML\uff5cparameter name="v">12</\uff5cDSML\uff5cparameter>', {}, 12),
        ("kimi_k3_xml", '<|open|>argument key="v" type="string"<|sep|>12<|close|>argument<|sep|>', {}, "12"),
        ("kimi_k3_xml", '<|open|>argument key="v" type="number"<|sep|>12<|close|>argument<|sep|>', {}, 12),
        ("cohere_xml", '<cofl:value name="v" type="raw"><cofl:value ></cofl:value>', {}, "<cofl:value >"),
        (
            "cohere_xml",
            '<cofl:value name="v" type="list">\n<cofl:value type="raw"> 1</cofl:value>'
            '<cofl:value type="dict"></cofl:value><cofl:value type="list"></cofl:value>\n</cofl:value>',
            {},
            [" 1", {}, []],
        ),
        ("minimax_m3_xml", "]<]minimax[>[<v>]<]minimax[>[</v>", STRING, ""),
        ("minimax_m3_xml", "]<]minimax[>[<v>]<]minimax[>[</v>", {"type": "array"}, []),
        ("minimax_m3_xml", "]<]minimax[>[<v>]<]minimax[>[</v>", {"type": "object"}, {}),
        (
            "minimax_m3_xml",
            "]<]minimax[>[<v>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[</v>",
            {"type": "array", "items": STRING},
            ["1"],
        ),
        (
            "minimax_m3_xml",
            "]<]minimax[>[<v>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[</v>",
            {"type": "object", "properties": {"item": NUMBER}},
            {"item": 1},
        ),
        (
            "minimax_m3_xml",
            "]<]minimax[>[<v>]<]minimax[>[<a>]<]minimax[>[<item>1]<]minimax[>[</item>]<]minimax[>[</a>]<]minimax[>[</v>",
            {"const": {"a": ["1"]}},
            {"a": ["1"]},
        ),
    ],
)
def test_a_value_says_what_it_is(style: str, text: str, schema: Any, meant: Any) -> None:
    assert arguments(style, text, {"properties": {"v": schema}}) == {"v": meant}


@pytest.mark.parametrize(
    ("style", "text", "name"),
    [
        ("qwen_xml", "<parameter=a>b>1</parameter>", "a>b"),
        ("qwen_xml", "<parameter=a>1</parameter>", "a"),
        (
            "kimi_k3_xml",
            '<|open|>argument key="x&quot;y" type="number"<|sep|>1<|close|>argument<|sep|>',
            'x"y',
        ),
        ("cohere_xml", '<cofl:value name="x&quot;y" type="json">1</cofl:value>', 'x"y'),
        ("cohere_xml", '<cofl:value name="x&amp;lt;" type="json">1</cofl:value>', "x&lt;"),
        ("minimax_xml", '<parameter name="größe x">1</parameter>', "größe x"),
        ("minimax_m3_xml", "]<]minimax[>[<a>b>1]<]minimax[>[</a>b>", "a>b"),
        ("glm_xml", "<arg_key>x</arg_key> \n <arg_value>1</arg_value>", "x"),
    ],
)
def test_names_of_parameters(style: str, text: str, name: str) -> None:
    schema = {"properties": {"a>b": NUMBER, name: NUMBER}}
    if name == "a":
        schema = {"properties": {"a": NUMBER}}
    assert arguments(style, text, schema) == {name: 1}


def test_no_parameters_and_any_parameters() -> None:
    assert arguments("qwen_xml", "\n", {"type": "object", "properties": {}}) == {}
    assert arguments("glm_xml", "", True) == {}
    text = "<parameter=a>1</parameter>\n<parameter=b>x</parameter>"
    assert arguments("qwen_xml", text, True) == {"a": 1, "b": "x"}


def test_arguments_come_one_by_one() -> None:
    tag = calls("qwen_xml", "<f>", {"properties": {"a": STRING, "b": NUMBER}}, "<end>")
    parser = AnswerParser.of_tools(tag, [{"name": "f"}])
    texts = ["<f>", "<parameter=a>x", "y</parameter>", "<parameter=b>1</para", "meter> ", "<e"]
    came = ["".join(getattr(part, "text", "") for part in parser.feed(text)) for text in texts]
    assert came == ["", "", '{"a": "xy"', "", ', "b": 1', "}"]
