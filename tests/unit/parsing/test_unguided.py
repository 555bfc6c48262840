"""Answers without a guide: what keeps to the format about right is read, and all else is text."""

from __future__ import annotations

import json

import pytest

from support.parsing.reading import read
from support.parsing.tools import function
from weft import Guide
from weft.errors import GuideError
from weft.parsing import Answer, AnswerParser, Call

TOOLS = [function("f", a={"type": "string"}), function("fg", n={"type": "integer"})]


def answer(style: str, text: str, **options: object) -> Answer:
    guide = Guide.tools(TOOLS, style=style, **options)  # type: ignore[arg-type]
    return read(lambda: AnswerParser.of_tools(guide, TOOLS), text)


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("qwen_3", '<tool_call>{"name":"f","arguments":{"a":"x"}}</tool_call>'),
        ("qwen_3", '\n<tool_call>\n\n{ "name" : "f" ,\n"arguments" :\t{"a":"x"} }\n</tool_call>\n'),
        ("qwen_3", '<tool_call>\n{"name": "f", "arguments": {"a":"x"}}'),
        ("exaone", '<tool_call>\n{"name": "f", "arguments": {"a":"x"}}\n</tool_call>'),
        ("llama", '{"name":"f","parameters":{"a":"x"}}'),
        (
            "deepseek_v3_1",
            '<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>f<\uff5ctool▁sep\uff5c>\n{"a":"x"}',
        ),
        (
            "deepseek_r1",
            '<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>f```json{"a":"x"}```',
        ),
        (
            "kimi",
            '<|tool_calls_section_begin|> <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a":"x"}',
        ),
        ("qwen_3_coder", "<tool_call><function=f><parameter=a>x</parameter></function></tool_call>"),
        (
            "qwen_3_coder",
            "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</tool_call>",
        ),
        ("mimo", "<tool_call>\n<function=f><parameter=a>x</parameter>\n</function> </tool_call>"),
        ("glm_4_7", "<tool_call>f\n<arg_key>a</arg_key>\n\n\n<arg_value>x</arg_value>\n</tool_call>"),
        ("minimax", '<minimax:tool_call>\n<invoke name="f">\n<parameter name="a">x</parameter>\n</invoke>\n'),
    ],
)
def test_other_blanks_and_missing_ends(style: str, text: str) -> None:
    found = answer(style, text)
    assert found.content == found.reasoning == ""
    (call,) = found.calls
    assert call.name == "f" and json.loads(call.arguments) == {"a": "x"}
    assert call.is_whole or not text.endswith(">")


@pytest.mark.parametrize(
    ("style", "text"),
    [
        ("qwen_3", 'Look: <tool_call>{"name": "fgh", "arguments": {}}</tool_call>'),
        ("qwen_3", "<tool_call>fg(n=3)</tool_call>"),
        ("qwen_3", '<tool_call>\n{"name": "f", "argum'),
        ("qwen_3", '<tool_call>\n{"name": "f", "arguments": nothing}'[:-8] + "@}"),
        ("llama", '{"name": "fgh", "parameters": {}} {"name": 3} {"name'),
        ("glm_4_7", "<tool_call>fgh<arg_key>n</arg_key><arg_value>3</arg_value></tool_call>"),
        ("glm_4_7", "<tool_call>fg.<arg_key>n</arg_key>"),
        ("qwen_3_coder", "<tool_call>\n<function=fgh>\n</function>\n</tool_call>"),
        ("harmony", "Hello."),
        ("kimi_k3", "Hello."),
        ("minimax", "a\n\nb\n\n\n\nc"),
        ("qwen_3", "<" * 100 + "<tool_cal" * 9),
        ("qwen_3", " \n "),
    ],
)
def test_what_is_no_call_is_text(style: str, text: str) -> None:
    assert answer(style, text) == Answer(content=text)


def test_names_that_begin_others() -> None:
    for style, text in (
        ("glm_4_7", "<tool_call>fg<arg_key>n</arg_key><arg_value>3</arg_value></tool_call>"),
        (
            "kimi",
            '<|tool_calls_section_begin|><|tool_call_begin|>functions.fg:1<|tool_call_argument_begin|>{"n": 3}',
        ),
    ):
        assert answer(style, text).calls == [Call("fg", '{"n": 3}', is_whole=True)]


def test_text_around_calls() -> None:
    call = '<tool_call>\n{"name": "fg", "arguments": {"n": 3}}\n</tool_call>'
    found = answer("qwen_3", f"\n\n{call}\n{call} \n a }} b{call}\n\n")
    assert found.content == " \n a } b" and len(found.calls) == 3
    strings = '{"a": "}\\n</tool_call>\\" {"}'
    found = answer("qwen_3", f'So <tool_call>\n{{"name": "f", "arguments": {strings}}}\n</tool_call>.')
    assert found == Answer(content="So .", calls=[Call("f", strings, is_whole=True)])


def test_reasoning_is_at_the_beginning_only() -> None:
    text = "<think>\nhm <tool_call></think>\n\n\nHello <think>x</think>"
    assert answer("qwen_3", text, reasoning="auto") == Answer("\nhm <tool_call>", "\nHello <think>x</think>")
    assert answer("qwen_3", " \n" + text, reasoning="auto").reasoning == "\nhm <tool_call>"
    assert answer("qwen_3", "Well. " + text, reasoning="auto") == Answer(content="Well. " + text)
    assert answer("qwen_3", text[7:], reasoning="enabled").reasoning == "\nhm <tool_call>"
    # Two ends of lines after it are layout, also where the format has none.
    assert answer("glm_4_7", "hm</think>\n\n\nHello", reasoning="enabled") == Answer("hm", "\nHello")
    assert answer("qwen_3", "hm", reasoning="enabled") == Answer(reasoning="hm")


def test_channels() -> None:
    analysis = "<|channel|>analysis<|message|>hm<|end|>"
    call = '<|start|>assistant to=functions.fg<|channel|>commentary json<|message|>{"n":3}<|call|>'
    final = "<|start|>assistant<|channel|>final<|message|>Done: "
    found = answer("harmony", analysis + call + final, reasoning="auto")
    assert found == Answer("hm", "Done: ", [Call("fg", '{"n":3}', is_whole=True)])


@pytest.mark.parametrize(
    ("tag", "tools", "text"),
    [
        ("{", TOOLS, "structural tag"),
        ({"format": 3}, TOOLS, "structural tag"),
        ({"format": {"type": "dispatch", "rules": []}}, TOOLS, "type 'dispatch' can't be read"),
        (
            {
                "format": {
                    "type": "tag",
                    "begin": {"type": "token", "token": 3},
                    "content": {"type": "any_text"},
                    "end": "x",
                }
            },
            TOOLS,
            "whose tags are tokens can't be read",
        ),
        (Guide.tools(TOOLS, style="llama"), TOOLS[:1], "begins with .*fg.* calls none"),
        (Guide.tools(TOOLS, style="llama"), [], "calls none of the tools"),
        (Guide.tools(TOOLS, style="llama"), [3], "3 is no tool"),
        (Guide.regex("a"), TOOLS, "not under a guide of the kind regex"),
    ],
)
def test_what_is_wrong_with_a_tag(tag: Guide, tools: list[object], text: str) -> None:
    with pytest.raises(GuideError, match=text):
        AnswerParser.of_tools(tag, tools)


WRITTEN = {
    "qwen_3": '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>',
    "llama": '{"name": "f", "parameters": {"a": "x"}}',
    "deepseek_v3_1": (
        '<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>f<\uff5ctool▁sep\uff5c>{"a": "x"}'
        "<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>"
    ),
    "qwen_3_coder": "<tool_call>\n<function=f>\n<parameter=a>x</parameter>\n</function>\n</tool_call>",
    "glm_4_7": "<tool_call>f<arg_key>a</arg_key><arg_value>x</arg_value></tool_call>",
}


@pytest.mark.parametrize("required", ["f", True], ids=["named", "required"])
@pytest.mark.parametrize("style", WRITTEN)
def test_a_call_that_was_cut_before_its_name_is_no_text(style: str, required: str | bool) -> None:
    guide = Guide.tools(TOOLS, style=style, required=required)
    for end in range(len(WRITTEN[style])):
        parser = AnswerParser.of_tools(guide, TOOLS)
        found = Answer.of([*parser.feed(WRITTEN[style][:end]), *parser.finish(is_cut=True)])
        assert found.content == found.reasoning == "", end
        assert all(call.name == "f" for call in found.calls)


def test_what_may_be_text_stays_text_where_an_answer_was_cut() -> None:
    guide = Guide.tools(TOOLS, style="qwen_3")
    for text, content in (
        ("1 <", "1 <"),
        ("1 <tool", "1 <tool"),
        ("1 <tool_call>", "1 "),
        ('1 <tool_call>\n{"name": "f', "1 "),
        ('1 <tool_call>\n{"name": "f", "arguments": ', "1 "),
        ("<tool_call> is", "<tool_call> is"),
    ):
        parser = AnswerParser.of_tools(guide, TOOLS)
        assert Answer.of([*parser.feed(text), *parser.finish(is_cut=True)]).content == content
        whole = Answer.of([*(again := AnswerParser.of_tools(guide, TOOLS)).feed(text), *again.finish()])
        assert whole.content == (content if whole.calls else text)
