"""Answers that are written along the tag of each format, and that its guide takes, are read as they were meant."""

from __future__ import annotations

import json
import random

import pytest

from support.grammar.grammars import END, backend
from support.parsing.reading import read
from support.parsing.tools import guide_of, tools_of
from support.parsing.written import written
from support.products import pairwise
from weft.grammar import CompiledGuide, tool_styles
from weft.grammar.kinds.tools import Reasoning
from weft.parsing import AnswerParser

NUM_ANSWERS = 4


def takes(compiled: CompiledGuide, text: str) -> bool:
    matcher = compiled.matcher()
    return all(matcher.accept(3 + byte) for byte in text.encode()) and matcher.accept(END)


@pairwise
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("reasoning", ["disabled", "enabled", "auto"])
@pytest.mark.parametrize("required", [False, True, "get", "name"])
@pytest.mark.parametrize("style", tool_styles())
def test_answers_are_read_as_they_were_meant(
    style: str, required: bool | str, reasoning: Reasoning, parallel: bool
) -> None:
    guide = guide_of(style, required, reasoning, parallel)
    compiled, num_taken = backend().compile(guide), 0
    for seed in range(NUM_ANSWERS):
        answer = written(guide, tools_of(style), seed)
        if not takes(compiled, answer.text):  # a string that the format can't hold there
            continue
        num_taken += 1
        found = read(lambda: AnswerParser.of_tools(guide, tools_of(style)), answer.text)
        meant = answer.answer
        assert (found.reasoning, found.content) == (meant.reasoning, meant.content), answer.text
        assert [call.name for call in found.calls] == [call.name for call in meant.calls]
        assert [json.loads(call.arguments) for call in found.calls] == answer.values
        assert all(call.is_whole for call in found.calls)
        for call, written_as in zip(found.calls, meant.calls, strict=True):
            assert written_as.arguments in ("", call.arguments)
    assert num_taken >= NUM_ANSWERS // 2


@pytest.mark.parametrize("num_ends", [20, pytest.param(80, marks=pytest.mark.slow)])
@pytest.mark.parametrize("style", tool_styles())
def test_a_cut_answer_is_read_as_far_as_it_came(style: str, num_ends: int) -> None:
    guide = guide_of(style, True, "auto", True)
    text = max((written(guide, tools_of(style), seed).text for seed in range(4)), key=len)
    whole = read(lambda: AnswerParser.of_tools(guide, tools_of(style)), text)
    for end in random.Random(1).sample(range(len(text)), min(num_ends, len(text))):
        found = read(lambda: AnswerParser.of_tools(guide, tools_of(style)), text[:end])
        # What has begun of a marker is text.
        assert whole.reasoning.startswith(found.reasoning[: len(whole.reasoning)])
        assert len(found.calls) <= len(whole.calls)
        for cut, call in zip(found.calls, whole.calls, strict=False):
            assert cut.name == call.name and call.arguments.startswith(cut.arguments)
            assert cut.arguments == call.arguments or not cut.is_whole
