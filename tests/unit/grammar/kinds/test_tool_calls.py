"""Tool calls: every format of XGrammar's, and two of them in detail."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import jsonschema
import pytest

from support.grammar.grammars import END, allowed, backend, new_row, small_vocabulary
from weft.errors import GuideError
from weft.grammar import Guide, Matcher
from weft.grammar.kinds.tools import tool_styles

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Bonn", "Ulm"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "…", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
]
UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
CALLS = {
    "llama": ('{"name": "get_weather", "parameters": %s}', '{"name": "stop", "parameters": {}}'),
    "qwen_3": (
        '<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>',
        '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>',
    ),
}
GOOD, BAD = '{"city": "Bonn", "days": 3}', '{"city": "Rome", "days": 3}'


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels // 2):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def start(guide: Guide) -> Matcher:
    return backend().compile(guide).matcher()


def mask(matcher: Matcher) -> list[int]:
    row = new_row()
    return allowed(row) if matcher.fill(row) else list(range(3, 259))


def takes(matcher: Matcher, text: str) -> bool:
    """Whether all bytes of a text are taken, each as the mask says."""
    for byte in text.encode():
        permitted = 3 + byte in mask(matcher)
        assert matcher.accept(3 + byte) == permitted
        if not permitted:
            return False
    return True


def walk(matcher: Matcher, seed: int, steps: int = 600) -> str | None:
    """A random text; None for one that did not end."""
    rng, tokens = random.Random(seed), []
    for _ in range(steps):
        choices = mask(matcher)
        if END in choices:
            return small_vocabulary().decode(tokens).decode()
        tokens.append(rng.choice(choices))
        assert matcher.accept(tokens[-1])
    return None


@pytest.mark.parametrize("style", tool_styles())
def test_every_style_calls_the_function_that_it_must(style: str) -> None:
    guide = Guide.tools(TOOLS, style=style, required="get_weather")
    if style == "kimi_k3":  # text may come before the call
        start(guide)
        return
    text = walk(start(guide), 1)
    assert text is not None and "get_weather" in text and "stop" not in text
    assert "Bonn" in text or "Ulm" in text
    assert END not in mask(start(Guide.tools(TOOLS, style=style, required=True)))
    may_end = END in mask(start(Guide.tools(TOOLS, style=style)))
    assert may_end == (style != "minimax")  # its answers begin with an end of reasoning


@pytest.mark.parametrize("style", CALLS)
def test_calls_between_texts(style: str) -> None:
    weather, stop = CALLS[style]
    text = f"Let me see. {weather % GOOD} and then {stop}, done."
    matcher = start(Guide.tools(TOOLS, style=style))
    assert takes(matcher, text) and matcher.accept(END)
    assert not takes(start(Guide.tools(TOOLS, style=style)), f"Look: {weather % BAD}")
    assert not takes(start(Guide.tools(TOOLS, style=style)), f"Look: {weather.replace('weather', 'water')}")


@pytest.mark.parametrize("style", CALLS)
def test_rollback_across_triggers_restores_the_masks(style: str) -> None:
    weather, stop = CALLS[style]
    text = f"x {weather % GOOD} y {stop} z".encode()
    matcher = start(Guide.tools(TOOLS, style=style))
    masks = []
    for byte in text:
        masks.append(mask(matcher))
        assert matcher.accept(3 + byte)
    for count in (1, 5, 30, len(text)):
        matcher.rollback(count)
        assert mask(matcher) == masks[len(text) - count]
        for byte in text[len(text) - count :]:
            assert matcher.accept(3 + byte)


@pytest.mark.parametrize("style", CALLS)
def test_what_may_be_called_and_how_often(style: str) -> None:
    weather, stop = CALLS[style]
    one = start(Guide.tools(TOOLS, style=style, parallel=False))
    assert takes(one, f"So: {weather % GOOD}") and mask(one) == [END]
    must = start(Guide.tools(TOOLS, style=style, required=True))
    assert END not in mask(must) and takes(must, stop) and END in mask(must) and takes(must, stop)
    named = start(Guide.tools(TOOLS, style=style, required="stop"))
    assert takes(named, stop) and mask(named) == [END]
    ordered = Guide.tools(TOOLS, style=style)
    with pytest.raises(GuideError, match="any_order: required is not enforced"):
        start(Guide.tools(TOOLS, style=style, any_order=True))
    loose = Guide.tools(TOOLS, style=style, any_order=True, strict=False)
    turned = weather % '{"days": 3, "city": "Bonn"}'
    assert not takes(start(ordered), turned) and takes(start(loose), turned)


@pytest.mark.parametrize("seed", range(4))
def test_what_comes_out_parses(seed: int) -> None:
    text = walk(start(Guide.tools(TOOLS, style="qwen_3", required="get_weather")), seed)
    assert text is not None
    call = json.loads(re.fullmatch(r"<tool_call>\n(.*)\n</tool_call>", text, re.DOTALL)[1])  # type: ignore[index]
    assert call["name"] == "get_weather"
    jsonschema.validate(call["arguments"], WEATHER)


def test_reasoning_comes_before() -> None:
    weather, _ = CALLS["qwen_3"]
    for reasoning, text in [("enabled", "hm</think>\n\n"), ("auto", "<think>hm</think>\n\n"), ("auto", "")]:
        guide = Guide.tools(TOOLS, style="qwen_3", required="get_weather", reasoning=reasoning)  # type: ignore[arg-type]
        matcher = start(guide)
        assert takes(matcher, text + weather % GOOD) and mask(matcher) == [END]


@pytest.mark.parametrize("reasoning", ["disabled", "enabled"])
def test_no_argument_repeats_a_listed_one_in_escapes(reasoning: Any) -> None:
    listed = {"a": {"type": "integer"}}
    schema = {"type": "object", "properties": listed, "additionalProperties": {"type": "string"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    guide = Guide.tools([tool], style="qwen_3", reasoning=reasoning)
    before = "" if reasoning == "disabled" else "thought</think>\n\n"
    call = before + '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'
    assert takes(start(guide), call % '{"a": 1, "b": "x"}')
    assert not takes(start(guide), call % r'{"a": 1, "\u0061": "x"}')


def test_parameters_are_read_as_schemas_are() -> None:
    """What a schema leaves open stays open, and what XGrammar does not enforce is told."""
    tool = {"name": "note", "parameters": {"type": "object"}}
    assert takes(start(Guide.tools([tool], style="llama")), '{"name": "note", "parameters": {"any": [1]}}')
    ignored = {"name": "note", "parameters": UNIQUE}
    (note,) = backend().compile(Guide.tools([ignored], style="llama", strict=False)).notes
    assert note.startswith(
        "#/format/tags/0/content/json_schema/properties/a: uniqueItems is not enforced (in"
    )
    assert '"name": "note"' in note
    with pytest.raises(GuideError, match=r"properties/a: uniqueItems is not enforced .*note"):
        start(Guide.tools([ignored], style="llama"))


@pytest.mark.parametrize("style", tool_styles())
def test_a_function_that_is_not_strict_is_enforced_as_one_that_does_not_say(style: str) -> None:
    tools = [{"name": "f", "parameters": WEATHER}]
    loose = [{"name": "f", "parameters": WEATHER, "strict": False}]
    assert Guide.tools(loose, style=style, required="f") == Guide.tools(tools, style=style, required="f")


@pytest.mark.parametrize("parameters", [None, {}], ids=["absent", "empty"])
def test_a_function_without_parameters_has_an_empty_object(parameters: Any) -> None:
    tool = {"name": "f"} | ({} if parameters is None else {"parameters": parameters})
    guide = Guide.tools([tool], style="llama", required="f")
    assert takes(start(guide), '{"name": "f", "parameters": {}}')
    for other in ('"x"', "3", "[]", '{"a": 1}'):
        assert not takes(start(guide), f'{{"name": "f", "parameters": {other}}}')


@pytest.mark.parametrize("style", ["llama", "qwen_3_5"])
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"city": {"enum": ["Bonn"]}}, "required": ["city"]},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"properties": {"city": {"enum": ["Bonn"]}}, "required": ["city"]}},
        },
        {"type": ["object", "null"], "properties": {"city": {"enum": ["Bonn"]}}, "required": ["city"]},
    ],
    ids=["no type", "reference", "two types"],
)
def test_arguments_are_an_object(style: str, schema: Any) -> None:
    text = walk(start(Guide.tools([{"name": "f", "parameters": schema}], style=style, required="f")), 1)
    assert text is not None and "city" in text and "Bonn" in text


@pytest.mark.parametrize("style", ["llama", "qwen_3_5"])
def test_a_property_that_may_not_be_there(style: str) -> None:
    """XGrammar would refuse the schema. Where other names may come, keeping it out is more than can be enforced."""
    schema = {**WEATHER, "properties": {**WEATHER["properties"], "x": False}}  # type: ignore[dict-item]
    guide = Guide.tools([{"name": "f", "parameters": schema}], style=style, required="f")
    for seed in range(3):
        text = walk(start(guide), seed)
        assert text is not None and "city" in text and "x=" not in text and '"x"' not in text
    if style == "llama":
        text = '{"name": "f", "parameters": {"city": "Bonn", "days": 3%s}}'
        assert takes(start(guide), text % "") and not takes(start(guide), text % ', "x": 1')
    schema["additionalProperties"] = {"type": "integer"}
    with pytest.raises(GuideError, match="property 'x' is not kept out where others may come"):
        start(Guide.tools([{"name": "f", "parameters": schema}], style=style, required="f"))
    lacks: dict[str, Any] = {**WEATHER, "not": {"required": ["x"]}}
    if style == "llama":
        start(Guide.tools([{"name": "f", "parameters": lacks}], style=style, required="f"))


def test_a_strict_function_is_enforced_whole_among_others() -> None:
    strict = {"name": "a", "parameters": UNIQUE, "strict": True}
    other = {"name": "b", "parameters": UNIQUE}
    for style in ("llama", "qwen_3_5"):
        with pytest.raises(GuideError, match=r"uniqueItems is not enforced \(in the tag .*a"):
            start(Guide.tools([strict, other], style=style, strict=False))
    (note,) = (
        backend()
        .compile(Guide.tools([{**strict, "parameters": WEATHER}, other], style="llama", strict=False))
        .notes
    )
    assert '"name": "b"' in note


@pytest.mark.parametrize(
    ("tools", "more", "text"),
    [
        ([], {}, "at least one"),
        ("tool", {}, "at least one"),
        ([3], {}, "3 is not a tool"),
        ([{"type": "function", "function": {}}], {}, "is not a tool"),
        ([{"name": 'a"b'}], {}, "a name has letters"),
        ([{"name": "a"}, {"name": "a"}], {}, "two functions of one name"),
        ([{"name": "a"}], {"required": "b"}, "no tool is called 'b'; the tools are a"),
        ([{"name": "a"}], {"style": "gpt"}, "style is 'gpt'; it must be one of .*llama.*qwen_3"),
        ([{"name": "a", "parameters": {"type": "nothing"}}], {}, "type is 'nothing'"),
        ([{"name": "a"}], {"reasoning": "often"}, "reasoning"),
        ([{"name": "a", "strict": "false"}], {}, "strict is 'false'; it must be true or false"),
        ([{"name": "a", "strict": 0}], {}, "strict is 0; it must be true or false"),
        (
            [{"name": "a", "paramters": {}}],
            {},
            "has 'paramters', which is not known; did you mean 'parameters'",
        ),
        ([{"type": "function", "function": {"name": "a"}, "strict": True}], {}, "move it into the function"),
        ([{"name": "a", "parameters": True}], {}, "parameters is True; it must be a JSON schema of objects"),
        (
            [{"name": "a", "parameters": {"type": "string"}}],
            {},
            "parameters.type is 'string'; it must be \"obj",
        ),
        ([{"name": "a", "description": 5}], {}, "description is 5; it must be a text"),
        ([{"name": "a", "parameters": deep(300)}], {}, "nest more than 240 deep"),
        ([{"name": "a", "parameters": deep(900)}], {}, "nest more than 240 deep"),
    ],
)
def test_what_is_wrong_with_tools(tools: Any, more: dict[str, Any], text: str) -> None:
    with pytest.raises(GuideError, match=text):
        Guide.tools(tools, **{"style": "llama", **more})


def test_schemas_of_tools_and_tags_are_rewritten() -> None:
    """As others are: what XGrammar alone would leave out is enforced, and what still is not has its place."""
    schema = {"allOf": [{"type": "integer"}, {"minimum": 3}, {"not": {"const": 4}}]}
    form = {
        "type": "json_schema",
        "json_schema": {"type": "object", "properties": {"n": schema}, "required": ["n"]},
    }
    tag = Guide.structural_tag({"format": {"type": "tag", "begin": "<t>", "content": form, "end": "</t>"}})
    compiled = backend().compile(tag)
    assert compiled.notes == ()
    for number, is_valid in ((3, True), (2, False), (4, False)):
        assert takes(compiled.matcher(), f'<t>{{"n": {number}}}</t>') == is_valid
    form["json_schema"] = {"type": "array", "uniqueItems": True, "maxItems": 9}
    again = {"format": {"type": "tag", "begin": "<t>", "content": form, "end": "</t>"}}
    (note,) = backend().compile(Guide.structural_tag(again, strict=False)).notes
    assert note.startswith("#/format/content/json_schema: uniqueItems")
    form["json_schema"] = {"type": "integer", "enum": ["a"]}
    with pytest.raises(GuideError, match="at #/format/content: nothing can satisfy"):
        backend().compile(Guide.structural_tag(again))
