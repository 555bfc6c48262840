"""Whatever a guide lets through is read: the calls are of the tools, and their arguments obey the schemas."""

from __future__ import annotations

import json

import jsonschema
import pytest

from support.parsing.reading import read
from support.parsing.tools import guide_of, tools_of
from support.parsing.walks import walk
from weft.grammar import tool_styles
from weft.grammar.kinds.tools import Reasoning
from weft.parsing import AnswerParser


def check(style: str, required: bool | str, reasoning: Reasoning, seed: int) -> None:
    guide = guide_of(style, required, reasoning, parallel=True)
    if guide is None:
        return
    tools = tools_of(style)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    text, has_ended = walk(guide, seed)
    answer = read(lambda: AnswerParser.of_tools(guide, tools), text)
    assert answer.calls or not required or not has_ended, text
    for call in answer.calls:
        assert call.name == required or not isinstance(required, str)
        if call.is_whole:
            jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    assert not has_ended or all(call.is_whole for call in answer.calls), text


@pytest.mark.parametrize("required", [False, True, "name"])
@pytest.mark.parametrize("style", tool_styles())
def test_calls_obey_their_schemas(style: str, required: bool | str) -> None:
    check(style, required, "disabled", 1)


@pytest.mark.slow
@pytest.mark.parametrize("reasoning", ["disabled", "enabled", "auto"])
@pytest.mark.parametrize("required", [False, True, "get", "get_all", "name"])
@pytest.mark.parametrize("style", tool_styles())
def test_many_calls_obey_their_schemas(style: str, required: bool | str, reasoning: Reasoning) -> None:
    for seed in range(12):
        check(style, required, reasoning, seed)
