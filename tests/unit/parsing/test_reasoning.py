"""Answers without calls: reasoning, then text; and the markers that a chat template has around reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from support.parsing.reading import read
from weft.errors import GuideError
from weft.parsing import Answer, AnswerParser, Content, Reasoning, reasoning_markers, starts_inside

THINK = ("<think>", "</think>")


def answer(text: str, begin: str | None = "<think>", *, inside: bool) -> Answer:
    return read(lambda: AnswerParser.of_reasoning(begin, "</think>", starts_inside=inside), text)


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("hm</think>\n\nYes.", True, "hm", "Yes."),
        ("\nhm\n</think>\n\n\n  Yes.\n", True, "\nhm\n", "\n  Yes.\n"),
        ("hm</think>Yes</think>.", True, "hm", "Yes</think>."),
        ("hm <think>", True, "hm <think>", ""),
        ("<think>hm</think>Yes.", True, "hm", "Yes."),
        ("hm</thin", True, "hm</thin", ""),
        ("<think>hm</think>Yes.", False, "hm", "Yes."),
        ("\n<think>\nhm</think>\n\nYes.", False, "\nhm", "Yes."),
        ("Yes. <think>hm</think>", False, "", "Yes. <think>hm</think>"),
        ("Yes.</think>", False, "", "Yes.</think>"),
        ("<thi", False, "", "<thi"),
        ("", True, "", ""),
        ("", False, "", ""),
    ],
)
def test_reasoning_comes_first(text: str, inside: bool, reasoning: str, content: str) -> None:
    assert answer(text, inside=inside) == Answer(reasoning, content)


def test_reasoning_that_only_a_prompt_begins() -> None:
    assert answer("hm</think>Yes.", None, inside=True) == Answer("hm", "Yes.")
    assert answer("<think>hm</think>", None, inside=False) == Answer("", "<think>hm</think>")


def test_text_comes_as_soon_as_it_is_settled() -> None:
    parser = AnswerParser.of_reasoning(*THINK, starts_inside=True)
    texts = ["a", "b<", "/", "x</thi", "nk>", "\n", "Hello", " <", "think>"]
    assert [parser.feed(text) for text in texts] == [
        [Reasoning("a")],
        [Reasoning("b")],
        [],
        [Reasoning("</x")],
        [],
        [],
        [Content("Hello")],
        [Content(" <")],
        [Content("think>")],
    ]
    assert parser.finish() == []


@pytest.mark.parametrize("markers", [("<think>", ""), ("", "</think>"), (None, "\n")])
def test_markers_are_more_than_blanks(markers: tuple[str | None, str]) -> None:
    with pytest.raises(GuideError, match="no blank"):
        AnswerParser.of_reasoning(*markers, starts_inside=True)


@pytest.mark.parametrize(
    ("template", "markers"),
    [
        ("{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}", THINK),
        ("{% if '</think>' in content %}{{ content.split('</think>')[-1] }}{% endif %}", THINK),
        ("{{ '<|START_THINKING|>' }}…{{ '<|END_THINKING|>' }}", ("<|START_THINKING|>", "<|END_THINKING|>")),
        ("{{ '[THINK]' + text + '[/THINK]' }}", ("[THINK]", "[/THINK]")),
        ("<mm:think>{{ text }}</mm:think>", ("<mm:think>", "</mm:think>")),
        ("{{ '<seed:think>' }}", ("<seed:think>", "</seed:think>")),
        ("{{ '◁think▷' }}{{ '◁/think▷' }}", ("◁think▷", "◁/think▷")),
        ("<|open|>think<|sep|>…<|close|>think<|sep|>", ("<|open|>think<|sep|>", "<|close|>think<|sep|>")),
        ("<|begin_of_thought|>…<|end_of_thought|>", ("<|begin_of_thought|>", "<|end_of_thought|>")),
        ("{{ '<|channel>thought\n' + text + '\n<channel|>' }}", ("<|channel>thought", "<channel|>")),
        ("<reasoning>…</reasoning> <think>", ("<reasoning>", "</reasoning>")),
        ("<|channel|>analysis<|message|>{{ message.thinking }}<|end|>", None),
        ("{{ messages[0].content }} thinking", None),
        ("", None),
    ],
)
def test_markers_of_a_chat_template(template: str, markers: tuple[str, str] | None) -> None:
    assert reasoning_markers(template) == markers


@pytest.mark.parametrize(
    ("template", "prompt", "text", "reasoning", "content"),
    [
        ("<think>", "hi<think>\n", "hm</think>Yes", "hm", "Yes"),
        ("<think>", "hi", "<think>hm</think>Yes", "hm", "Yes"),
        ("<think>", "hi<think>\n\n</think>\n\n", "Yes <think>", "", "Yes <think>"),
        ({"default": "<think>"}, "hi", "Yes", "", "Yes"),
        ("{{ text }}", "hi", "<think>Yes", "", "<think>Yes"),
        (None, "hi", "Yes", "", "Yes"),
    ],
)
def test_a_template_and_a_prompt_show_the_reasoning(
    template: Any, prompt: str, text: str, reasoning: str, content: str
) -> None:
    parser = AnswerParser.of_template(template, prompt)
    assert parser.read(text) == Answer(reasoning, content)


def test_reasoning_before_a_guide_needs_no_begin() -> None:
    parser = AnswerParser.of_template("<think>", "hi", is_guided=True)
    assert parser.read("hm</think>{}") == Answer("hm", "{}")


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [
        ("<user>Hello<assistant><think>\n", True),
        ("<user>Hello<assistant><think>\n\n</think>\n\n", False),
        ("<think>a</think>b<user>c<assistant><think>", True),
        ("<think>a</think>b<user>c<assistant>", False),
        ("<user>Hello<assistant>", False),
        ("", False),
    ],
)
def test_whether_a_prompt_has_begun_reasoning(prompt: str, inside: bool) -> None:
    assert starts_inside(prompt, *THINK) == inside
