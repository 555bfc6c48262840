"""Calls of functions: chosen, guided, parsed while they stream."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from support.server.asking import ANSWER, MESSAGES, TOOLS

NAMED = {"type": "function", "function": {"name": "find_person"}}


def chat(client: Any, **more: Any) -> Any:
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 120,
        **more,
    }
    return client.chat.completions.create(**asked)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_is_there_and_fits(client: Any, choice: Any) -> None:
    answer = chat(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    (chosen,) = answer.choices
    assert chosen.finish_reason == "tool_calls"
    (call,) = chosen.message.tool_calls
    assert call.type == "function" and call.id.startswith("call_")
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == ({"name", "age"} if call.function.name == "find_person" else set())
    if choice == NAMED:
        assert (call.function.name, arguments) == ("find_person", ANSWER)


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_calls_stream(client: Any, choice: Any) -> None:
    whole = chat(client, tools=TOOLS, tool_choice=choice).choices[0].message
    calls: dict[int, dict[str, str]] = {}
    content, reasons, parts = "", [], 0
    for chunk in chat(client, tools=TOOLS, tool_choice=choice, stream=True):
        (chosen,) = chunk.choices
        content += chosen.delta.content or ""
        for call in chosen.delta.tool_calls or ():
            held = calls.setdefault(call.index, {"id": call.id, "name": call.function.name, "arguments": ""})
            held["arguments"] += call.function.arguments
            parts += 1
        reasons.append(chosen.finish_reason)
    assert content == (whole.content or "") and reasons[-1] == "tool_calls"
    assert [(one["name"], one["arguments"]) for one in calls.values()] == [
        (call.function.name, call.function.arguments) for call in whole.tool_calls
    ]
    assert len({one["id"] for one in calls.values()}) == len(calls) and parts > 2


def test_auto_may_answer_with_text(client: Any) -> None:
    answer = chat(client, tools=TOOLS)
    assert json.loads(answer.choices[0].message.content) == ANSWER
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].finish_reason == "stop"


def test_none_calls_nothing_and_may_be_guided(client: Any) -> None:
    answer = chat(client, tools=TOOLS, tool_choice="none", extra_body={"guide": {"regex": "[0-9]{2}"}})
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].message.content.isdigit()


def test_allowed_tools(client: Any) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    answer = chat(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert answer.choices[0].message.tool_calls[0].function.name == "find_person"


def test_a_turn_after_a_tool_call(client: Any) -> None:
    """The conversation is rendered: the prompt grows by what the tool said."""
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "When is it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "it is noon"},
        *MESSAGES,
    ]
    alone, after = chat(client, tools=TOOLS), chat(client, messages=messages, tools=TOOLS)
    assert after.usage.prompt_tokens > alone.usage.prompt_tokens + 5


def test_a_call_that_is_cut_is_as_far_as_it_came(client: Any) -> None:
    answer = chat(client, tools=TOOLS, tool_choice=NAMED, max_tokens=24)
    (chosen,) = answer.choices
    assert chosen.finish_reason == "length"
    assert chosen.message.tool_calls is None or chosen.message.tool_calls[0].function.name == "find_person"


REFUSED = {
    "no tools": ({"tool_choice": "required"}, "tool_choice"),
    "unknown choice": ({"tools": TOOLS, "tool_choice": "perhaps"}, "tool_choice"),
    "unknown name": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}},
        "tool_choice",
    ),
    "two guides": ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "tools"),
    "functions": ({"extra_body": {"functions": [{"name": "f"}]}}, "functions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(client: Any, name: str) -> None:
    more, param = REFUSED[name]
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **more)
    assert caught.value.param == param


def test_parameters_that_are_no_schema(client: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "objct"}}}]
    with pytest.raises(openai.BadRequestError, match="objct"):
        chat(client, tools=tools)
