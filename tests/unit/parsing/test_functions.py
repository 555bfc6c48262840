"""Which function a call is of."""

from __future__ import annotations

import pytest

from support.parsing.reading import read
from support.parsing.tools import function
from support.parsing.written import written
from support.products import rest_slow
from weft import Guide
from weft.grammar import tool_styles
from weft.parsing import AnswerParser, CallBegin

STRING, NUMBER = {"type": "string"}, {"type": "number"}
TOOLS = [
    function("name", x=STRING),
    function("parameters", x=STRING, y=STRING),
    function("function", y=STRING),
    function("f", z=NUMBER),
    function("f.name", z=NUMBER),
    function("name-f", z=NUMBER),
    function("json", w=NUMBER),
]
NAMES = [tool["function"]["name"] for tool in TOOLS]


@rest_slow
@pytest.mark.parametrize("required", [False, *NAMES])
@pytest.mark.parametrize("style", tool_styles())
def test_each_call_is_of_its_function(style: str, required: bool | str) -> None:
    """Names that formats have in their markers, and such that are a part of others."""
    guide = Guide.tools(TOOLS, style=style, required=required)
    for seed in range(8):
        answer = written(guide, TOOLS, seed)
        found = read(lambda: AnswerParser.of_tools(guide, TOOLS), answer.text).calls
        assert [call.name for call in found] == [call.name for call in answer.answer.calls]


def test_calls_of_each_function() -> None:
    guide = Guide.tools(TOOLS, style="qwen_3")
    text = "".join(f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>' for name in NAMES)
    assert [call.name for call in read(lambda: AnswerParser.of_tools(guide, TOOLS), text).calls] == NAMES
    parts = AnswerParser.of_tools(guide, TOOLS).feed(text)
    assert [part.index for part in parts if isinstance(part, CallBegin)] == [*range(len(NAMES))]
