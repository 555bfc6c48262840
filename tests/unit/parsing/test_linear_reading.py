"""Reading takes a time that grows with the text's length and no faster, also a character at a time."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.parsing.tools import function
from weft import Guide
from weft.parsing import AnswerParser

TOOLS = [function("f", may_a={"type": "string"}, may_l={"type": "array", "items": {"type": "string"}})]
QWEN, CODER = "<tool_call>\n", "<tool_call>\n<function=f>\n"
M3 = ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">'
COHERE = '<cofl:tool_calls><cofl:tool_call id="1" name="f">'
KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:"
SHAPES = {
    "text": ("qwen_3", "", "hello wor", ""),
    "first characters of markers": ("qwen_3", "", "<", ""),
    "halves of markers": ("qwen_3", "", QWEN, ""),
    "calls": ("qwen_3", "", QWEN + '{"name": "f", "arguments": {"a": "x"}}\n</tool_call>\n', ""),
    "a long string": ("qwen_3", QWEN + '{"name": "f", "arguments": {"a": "', 'x\\"', ""),
    "deep lists": ("qwen_3", QWEN + '{"name": "f", "arguments": ', "[", ""),
    "blanks": ("qwen_3", "", " ", ""),
    "blanks in a marker": ("qwen_3", QWEN, " ", ""),
    "XML calls": (
        "qwen_3_coder",
        "",
        CODER + "<parameter=may_a>y</parameter>\n</function>\n</tool_call>",
        "",
    ),
    "a long XML string": ("qwen_3_coder", CODER + "<parameter=may_a>", "</param", ""),
    "a long XML list": ("qwen_3_coder", CODER + "<parameter=may_l>[", '"</parameter>", ', ""),
    "a long name": ("qwen_3_coder", CODER + "<parameter=", "y", ""),
    "blanks in XML": ("qwen_3_coder", CODER, " ", ""),
    "items": ("minimax_m3", M3 + "]<]minimax[>[<may_l>", "]<]minimax[>[<item>y]<]minimax[>[</item>", ""),
    "nested items": ("minimax_m3", M3, "]<]minimax[>[<item>", "]<]minimax[>[</item>"),
    "nested values": ("cohere", COHERE, '<cofl:value name="a" type="dict">', "</cofl:value>"),
    "digits": ("kimi", KIMI, "1", ""),
    "headers": ("kimi", "", KIMI + "1" * 900, ""),
}
"""A format, and a text: how it begins, what comes again and again, and what comes as often after that."""
GROWTH = 2.5
FLOOR_S = 0.02


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    """A collection looks at all that the process holds, whosever turn it is."""
    gc.disable()
    yield
    gc.enable()


def cpu_s(style: str, texts: list[str]) -> float:
    """The least of three times."""
    guide, times = Guide.tools(TOOLS, style=style), []
    for _ in range(3):
        parser = AnswerParser.of_tools(guide, TOOLS)
        start = time.thread_time()
        for text in texts:
            parser.feed(text)
        parser.finish()
        times.append(time.thread_time() - start)
    return min(times)


def text_of(length: int, shape: Any) -> str:
    _, begin, again, then = shape
    count = length // len(again + then)
    return str(begin + again * count + then * count)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, id=name, marks=[] if number % 3 == 0 else [pytest.mark.slow])
        for number, (name, shape) in enumerate(SHAPES.items())
    ],
)
def test_time_grows_with_the_text(shape: Any) -> None:
    """A character at a time, and whole."""
    for length, cut in ((1 << 13, list), (1 << 16, lambda text: [text])):
        small, large = (cpu_s(shape[0], cut(text_of(size, shape))) for size in (length, length * 4))
        assert large <= GROWTH**2 * max(small, FLOOR_S), f"{small:.3f} s, then {large:.3f} s"


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_a_megabyte_a_character_at_a_time(shape: Any) -> None:
    parser, text = AnswerParser.of_tools(Guide.tools(TOOLS, style=shape[0]), TOOLS), text_of(1 << 20, shape)
    start = time.thread_time()
    for char in text:
        parser.feed(char)
    parser.finish()
    assert time.thread_time() - start < 60
