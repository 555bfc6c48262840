"""Reasoning over HTTP: what a model thinks is given apart, and the guide begins after it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("openai")

from openai import BadRequestError, OpenAI

from support.server.asking import ANSWER, PROMPT, SCHEMA
from support.server.running import running_thinker
from weft.server.writing.common import tokens_through

FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
# The prompt has begun the thinking, as templates of models that think do.
INSIDE: Any = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "<think>"}]
BUDGET = 6
FREE = {"continue_final_message": True, "add_generation_prompt": False}
BOUNDED = {**FREE, "thinking_token_budget": BUDGET}


@pytest.fixture(scope="module")
def thinker() -> Iterator[Any]:
    with (
        running_thinker() as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="nobody asks", max_retries=0, timeout=60) as made,
    ):
        yield made.chat.completions


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": INSIDE, "max_tokens": 80, "temperature": 0, **more}


def test_the_guide_begins_after_the_thinking(thinker: Any) -> None:
    answer = thinker.create(**asked(response_format=FORMAT, extra_body=BOUNDED))
    (choice,) = answer.choices
    assert json.loads(choice.message.content).keys() == ANSWER.keys()
    assert choice.message.reasoning_content and "</think>" not in choice.message.reasoning_content
    assert choice.message.content.startswith("{") and choice.finish_reason == "stop"
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens <= answer.usage.completion_tokens


def test_a_stream_says_the_same_apart(thinker: Any) -> None:
    whole = thinker.create(**asked(response_format=FORMAT, extra_body=BOUNDED)).choices[0].message
    reasoning, content, order = "", "", list[str]()
    for event in thinker.create(**asked(response_format=FORMAT, extra_body=BOUNDED, stream=True)):
        delta = event.choices[0].delta
        if thought := getattr(delta, "reasoning_content", None):
            reasoning += thought
            order.append("reasoning")
        if delta.content:
            content += delta.content
            order.append("content")
    assert (reasoning, content) == (whole.reasoning_content, whole.content)
    assert order == sorted(order, reverse=True)  # all of the reasoning comes first


def test_reasoning_can_be_left_out(thinker: Any) -> None:
    body = asked(response_format=FORMAT, extra_body={**BOUNDED, "include_reasoning": False})
    message = thinker.create(**body).choices[0].message
    assert getattr(message, "reasoning_content", None) is None
    assert json.loads(message.content).keys() == ANSWER.keys()


def test_what_never_ends_its_thinking_is_all_reasoning(thinker: Any) -> None:
    message = thinker.create(**asked(max_tokens=8, extra_body=FREE)).choices[0].message
    assert message.reasoning_content and not message.content
    goes_on = [*INSIDE, message.model_dump(exclude_unset=True), {"role": "user", "content": "And then?"}]
    assert thinker.create(**asked(messages=goes_on, max_tokens=2, extra_body=FREE)).choices


def test_a_prompt_that_ended_the_thinking_gets_content_alone(thinker: Any) -> None:
    closed = [INSIDE[0], {"role": "assistant", "content": "<think></think>"}]
    message = (
        thinker.create(**asked(messages=closed, response_format=FORMAT, extra_body=FREE)).choices[0].message
    )
    assert json.loads(message.content).keys() == ANSWER.keys()
    assert getattr(message, "reasoning_content", None) is None


@pytest.mark.parametrize("budget", [0, 3])
def test_thinking_that_the_model_did_not_open_is_no_content(thinker: Any, budget: int) -> None:
    body = asked(
        messages=INSIDE[:1],
        extra_body={"guide": {"regex": "[0-9]{3}"}, "thinking_token_budget": budget},
    )
    message = thinker.create(**body).choices[0].message
    assert message.content.isdigit() and len(message.content) == 3
    assert bool(getattr(message, "reasoning_content", None)) == (budget > 0)
    streamed = [event.choices[0].delta for event in thinker.create(**body, stream=True)]
    assert "".join(delta.content or "" for delta in streamed) == message.content


def test_a_budget_without_a_guide_is_refused(thinker: Any) -> None:
    with pytest.raises(BadRequestError) as refused:
        thinker.create(**asked(extra_body=BOUNDED))
    assert refused.value.param == "thinking_token_budget"


def test_tokens_of_reasoning_are_counted_alike_whole_and_streamed(thinker: Any) -> None:
    body = asked(response_format=FORMAT, extra_body={**BOUNDED, "return_token_ids": True})
    whole = thinker.create(**body)
    *_, last = thinker.create(**body, stream=True, stream_options={"include_usage": True})
    counted = whole.usage.completion_tokens_details.reasoning_tokens
    assert counted == last.usage.completion_tokens_details.reasoning_tokens > 0


@pytest.mark.parametrize(
    ("pieces", "text", "count"),
    [
        ((b"ab", b"cd", b"ef"), "", 0),
        ((b"ab", b"cd", b"ef"), "ab", 1),
        ((b"ab", b"cd", b"ef"), "abc", 2),
        ((b"<think>", b"ab", b"cd", b"</think>"), "abcd", 3),
        ((b"\xc3", b"\xa9", b"e"), "é", 2),
        ((b"ab",), "elsewhere", 1),
    ],
)
def test_how_many_tokens_reach_to_the_end_of_a_text(pieces: tuple[bytes, ...], text: str, count: int) -> None:
    assert tokens_through(pieces, text) == count
