"""Tidy JSON, which guides allow by default: one space or none after each comma and colon, and no other whitespace."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import pytest

from support.grammar.grammars import END, ids, small_vocabulary
from weft.errors import GuideError
from weft.grammar import Guide, GuideCompiler, Matcher

BLANKS = ["", "", "", " ", " ", "  ", "\n", "\t", "\r\n"]
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"\[\]{},:]+|[\[\]{},:]')

# Each has its own way through XGrammar's grammars: listed, optional and other properties, patterns of names, nested
# values of any type, prefixes, constants and enums, references, and bounds.
CASES: dict[str, tuple[Any, Any]] = {
    "any": ({"type": ["object", "array"]}, {"a": [1, {"b": [[], {}]}], "c": None}),
    "listed": (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "string"}}},
            "required": ["a"],
        },
        {"a": 1, "b": ["x, y: z", ""]},
    ),
    "optional": (
        {"type": "object", "properties": {name: {"type": "boolean"} for name in "abc"}},
        {"b": True, "c": False},
    ),
    "others": (
        {
            "type": "object",
            "properties": {"a": {"type": "null"}},
            "additionalProperties": {"type": "integer"},
        },
        {"a": None, "z": 1, "y": 2},
    ),
    "patterns": (
        {
            "type": "object",
            "patternProperties": {"^x[0-9]$": {"type": "array"}},
            "additionalProperties": False,
        },
        {"x1": [], "x2": [1, "a"]},
    ),
    "prefix": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "object"}], "minItems": 1},
        [1, {"k": 2}, 3],
    ),
    "bounds": (
        {
            "type": "object",
            "properties": {"s": {"type": "string", "maxLength": 3}, "l": {"type": "array", "maxItems": 2}},
            "minProperties": 1,
        },
        {"s": "a:b", "l": [1, 2]},
    ),
    "constant": (
        {
            "type": "object",
            "properties": {"c": {"const": {"k, ": [1, {"q\"'\\": "a:, b"}]}}},
            "required": ["c"],
        },
        {"c": {"k, ": [1, {"q\"'\\": "a:, b"}]}},
    ),
    "enum": (
        {"type": "array", "items": {"enum": [[1, 2], {"a": "[b,c]"}, "[b,c]", ": "]}},
        [[1, 2], "[b,c]", {"a": "[b,c]"}],
    ),
    "reference": (
        {
            "$ref": "#/$defs/node",
            "$defs": {
                "node": {
                    "type": "object",
                    "properties": {
                        "v": {"type": "integer"},
                        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
                    },
                    "required": ["v", "next"],
                }
            },
        },
        {"v": 1, "next": {"v": 2, "next": None}},
    ),
    "both": (
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"items": {"type": "integer"}}}},
                {"required": ["a"]},
            ]
        },
        {"a": [7, 8]},
    ),
}


@pytest.fixture(scope="module", params=["xgrammar", "llguidance"])
def compiler(request: pytest.FixtureRequest) -> Any:
    with GuideCompiler(small_vocabulary(), backend=request.param) as compiler:
        yield compiler


def is_taken(matcher: Matcher, text: str) -> bool:
    tokens = [*ids(text), END]
    return matcher.validate(tokens) == len(tokens)


def texts_of(value: Any, count: int) -> dict[str, bool]:
    """Write a value with random whitespace between its JSON tokens. Returns whether each text is tidy."""
    tokens, rng = TOKEN.findall(json.dumps(value)), random.Random(0)
    texts = {
        json.dumps(value): True,
        json.dumps(value, separators=(",", ":")): True,
        json.dumps(value, indent=1): len(tokens) <= 2,
    }
    for i in range(count):
        blanks = [""]  # a guide does not decide about whitespace before the value, or after it
        for token in tokens[:-1]:
            tidy = ["", " "] if token in ",:" else [""]
            blanks.append(rng.choice(tidy if i % 2 or rng.random() < 0.9 else BLANKS))
        is_tidy = all(
            blank == "" or (blank == " " and before in ",:")
            for before, blank in zip(tokens, blanks[1:], strict=False)
        )
        texts["".join(map("".join, zip(blanks, tokens, strict=True)))] = is_tidy
    return texts


@pytest.mark.parametrize("name", CASES)
def test_tidy_texts_and_no_others(compiler: GuideCompiler, name: str) -> None:
    schema, value = CASES[name]
    matcher = compiler.compile_part(Guide.json_schema(schema)).matcher()
    texts = texts_of(value, 120)
    assert all(json.loads(text) == value for text in texts)
    assert sum(texts.values()) > 2 and len(texts) - sum(texts.values()) > 5
    for text, is_tidy in texts.items():
        assert is_taken(matcher, text) == is_tidy, text


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_separators_hold_everywhere(compiler: GuideCompiler, name: str, separators: tuple[str, str]) -> None:
    """Also within nested values of any type, and within constants."""
    schema, value = CASES[name]
    matcher = compiler.compile_part(Guide.json_schema(schema, separators=separators)).matcher()
    for item, key in itertools.product([", ", ","], [": ", ":"]):
        text = json.dumps(value, separators=(item, key))
        assert is_taken(matcher, text) == (text == json.dumps(value, separators=separators)), text


def test_the_two_ways_back(compiler: GuideCompiler) -> None:
    value = {"a": [1, 2]}
    bounded = compiler.compile_part(Guide.json(max_whitespace=8)).matcher()
    unbounded = compiler.compile_part(Guide.json(max_whitespace=None)).matcher()
    for text in (json.dumps(value), json.dumps(value, indent=2), '{"a" : [ 1\n,\n2 ]}'):
        assert is_taken(bounded, text) and is_taken(unbounded, text)
    assert is_taken(unbounded, f"[1,{' ' * 99}2]") and not is_taken(bounded, f"[1,{' ' * 99}2]")


def test_a_key_is_forced_up_to_its_colon(compiler: GuideCompiler) -> None:
    schema = {"type": "object", "properties": {"abc": {"type": "integer"}}, "required": ["abc"]}
    tidy, free = (
        compiler.compile_part(Guide.json_schema(schema, max_whitespace=bound)).matcher()
        for bound in ("tidy", 8)
    )
    tokens = small_vocabulary().tokens
    assert b"".join(tokens[token] for token in tidy.forced(16)) == b'{"abc":'
    assert free.forced(16) == []  # a quote or whitespace may follow the brace


ARGUMENTS = {
    "type": "object",
    "properties": {"c": {"const": {"a": [1, 2]}}, "n": {"type": "array"}, "m": {"type": "object"}},
    "required": ["c", "n"],
}
GIVEN = {"c": {"a": [1, 2]}, "n": [[3, 4], {"k": 5}], "m": {"l": {"o": "6, 7"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": ARGUMENTS}}
JSON_STYLES = ["deepseek_r1", "deepseek_v3_1", "exaone", "harmony", "kimi", "llama", "qwen_3"]


def call_of(guide: Guide, arguments: str) -> str:
    """A call of the one function, as the guide's tag writes it."""
    form = json.loads(guide.source)["format"]
    while form["type"] != "tag" or form["content"]["type"] == "tags_with_separator":
        parts = form.get("elements") or form.get("tags") or [form["content"]]
        form = next(part for part in parts if '"json_schema"' in json.dumps(part))
    inner = form["content"]
    parts = inner["elements"] if inner["type"] == "sequence" else [inner]
    texts = {"json_schema": arguments, "regex": "0"}
    return str(form["begin"]) + "".join(texts.get(p["type"]) or p["value"] for p in parts) + str(form["end"])


@pytest.mark.parametrize("style", JSON_STYLES)
@pytest.mark.parametrize("options", [{}, {"open_objects": True}, {"any_order": True, "strict": False}])
def test_arguments_of_tools_are_tidy(style: str, options: dict[str, Any]) -> None:
    guide = Guide.tools([TOOL], style=style, required=True, **options)
    old = Guide.tools([TOOL], style=style, required=True, max_whitespace=8, **options)
    assert guide != old
    with GuideCompiler(small_vocabulary(), backend="xgrammar") as compiler:
        tidy, free = (compiler.compile_part(each).matcher() for each in (guide, old))
    num_free = 0
    for text, is_tidy in texts_of(GIVEN, 40).items():
        taken = [_begins(matcher, guide, text) for matcher in (tidy, free)]
        assert taken[0] == is_tidy, text
        num_free += taken[1]
    assert num_free > 3


def _begins(matcher: Matcher, guide: Guide, arguments: str) -> bool:
    """Whether a call may be written, alone or after the text that begins a section of calls."""
    call = call_of(guide, arguments)
    for section in ("", "<\uff5ctool\u2581calls\u2581begin\uff5c>", "<|tool_calls_section_begin|>"):
        tokens = ids(section + call)
        if matcher.validate(tokens) == len(tokens):
            return True
    return False


@pytest.mark.parametrize("reasoning", ["disabled", "enabled", "auto"])
def test_a_tag_with_reasoning_is_tidy(reasoning: Any) -> None:
    guide = Guide.tools([TOOL], style="qwen_3", reasoning=reasoning)
    with GuideCompiler(small_vocabulary(), backend="xgrammar") as compiler:
        matcher = compiler.compile_part(guide).matcher()
    before = {"disabled": "", "enabled": "hm</think>\n\n", "auto": "<think>hm</think>\n\n"}[reasoning]
    for text, is_tidy in texts_of(GIVEN, 20).items():
        tokens = ids(f'{before}<tool_call>\n{{"name": "f", "arguments": {text}}}\n</tool_call>')
        assert (matcher.validate(tokens) == len(tokens)) == is_tidy, text


def test_layout_of_xml_is_free_and_json_in_it_tidy() -> None:
    guide = Guide.tools([TOOL], style="qwen_3_coder", required="f", parallel=False)
    with GuideCompiler(small_vocabulary(), backend="xgrammar") as compiler:
        matcher = compiler.compile_part(guide).matcher()
    for value, is_tidy in (
        ("[[3, 4], {}]", True),
        ("[[3,4],{}]", True),
        ("[ [3, 4], {}]", False),
        ("[[3 ,4]]", False),
    ):
        text = (
            "<tool_call>\n<function=f>\n<parameter=c>\n" + '{"a":[1,2]}' + "\n</parameter>\n"
            f"<parameter=n>\n{value}\n</parameter>\n</function>\n</tool_call>"
        )
        assert is_taken(matcher, text) == is_tidy, value


def test_a_tag_of_the_user_keeps_xgrammars_whitespace() -> None:
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "array"}}}
    with GuideCompiler(small_vocabulary(), backend="xgrammar") as compiler:
        free = compiler.compile_part(Guide.structural_tag(tag)).matcher()
        tag["format"] |= {"max_whitespace_cnt": 1}  # type: ignore[operator]
        bounded = compiler.compile_part(Guide.structural_tag(tag)).matcher()
    assert is_taken(free, f"[{' ' * 30}]") and is_taken(bounded, "[ ]") and not is_taken(bounded, "[  ]")


def test_words_of_a_wrong_option() -> None:
    with pytest.raises(
        GuideError, match="max_whitespace is 'Tidy'; it must be 'tidy', a number from 1 on, or None"
    ):
        Guide.json(max_whitespace="Tidy")  # type: ignore[arg-type]
