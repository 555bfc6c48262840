"""Calls of functions: chosen, guided, parsed while they stream."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from support.server.asking import ANSWER, MESSAGES, TOOLS

NAMED = {"type": "function", "function": {"name": "find_person"}}


def function(**members: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **members}}]


def deep(levels: int) -> dict[str, Any]:
    """Data that is a schema, as much as matters."""
    data: dict[str, Any] = {}
    for _ in range(levels):
        data = {"default": data}
    return data


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
    parts = attempts = 0
    while parts <= 2:  # a fast model may have a whole call before its first part is sent
        calls: dict[int, dict[str, str]] = {}
        content, reasons, parts = "", [], 0
        for chunk in chat(client, tools=TOOLS, tool_choice=choice, stream=True):
            (chosen,) = chunk.choices
            content += chosen.delta.content or ""
            for call in chosen.delta.tool_calls or ():
                held = calls.setdefault(
                    call.index, {"id": call.id, "name": call.function.name, "arguments": ""}
                )
                held["arguments"] += call.function.arguments
                parts += 1
            reasons.append(chosen.finish_reason)
        assert content == (whole.content or "") and reasons[-1] == "tool_calls"
        assert [(one["name"], one["arguments"]) for one in calls.values()] == [
            (call.function.name, call.function.arguments) for call in whole.tool_calls
        ]
        assert len({one["id"] for one in calls.values()}) == len(calls)
        attempts += 1
        assert attempts < 100


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
    whole = chat(client, tools=TOOLS, tool_choice=NAMED).choices[0].message.tool_calls[0].function
    answer = chat(client, tools=TOOLS, tool_choice=NAMED, max_tokens=36)
    (chosen,) = answer.choices
    (call,) = chosen.message.tool_calls
    assert chosen.finish_reason == "length" and call.function.name == "find_person"
    assert whole.arguments.startswith(call.function.arguments) and call.function.arguments != whole.arguments


def test_a_call_that_is_cut_before_its_name_is_no_content(client: Any) -> None:
    for choice in ("required", NAMED):
        for count in (1, 3, 6):
            answer = chat(client, tools=TOOLS, tool_choice=choice, max_tokens=count)
            (chosen,) = answer.choices
            assert (chosen.finish_reason, chosen.message.tool_calls) == ("length", None)
            assert not chosen.message.content
            chunks = list(chat(client, tools=TOOLS, tool_choice=choice, max_tokens=count, stream=True))
            assert not any(chunk.choices[0].delta.content for chunk in chunks)


def test_a_stop_word_within_a_call_is_why_it_ended(client: Any) -> None:
    for stream in (False, True):
        answer = chat(client, tools=TOOLS, tool_choice=NAMED, stop=['name": "Ada'], stream=stream)
        reasons = [one.choices[0].finish_reason for one in (answer if stream else [answer])]
        assert reasons[-1] == "stop"
    (call,) = chat(client, tools=TOOLS, tool_choice=NAMED, stop=['name": "Ada']).choices[0].message.tool_calls
    assert call.function.arguments == '{"'


REFUSED = {
    "no tools": ({"tool_choice": "required"}, "tool_choice"),
    "unknown choice": ({"tools": TOOLS, "tool_choice": "perhaps"}, "tool_choice"),
    "unknown name": (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}},
        "tool_choice",
    ),
    "unknown mode": (
        {
            "tools": TOOLS,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "requird", "tools": [NAMED]}},
        },
        "tool_choice",
    ),
    "unknown member of a choice": (
        {"tools": TOOLS, "tool_choice": {**NAMED, "mode": "required"}},
        "tool_choice",
    ),
    "unknown member of a function": ({"tools": function(paramters={})}, "tools"),
    "unknown member of one that is not called": (
        {"tools": function(paramters={}), "tool_choice": "none"},
        "tools",
    ),
    "strict is a text": ({"tools": function(strict="false")}, "tools"),
    "strict is a number": ({"tools": function(strict=0)}, "tools"),
    "parameters are no object": ({"tools": function(parameters=True)}, "tools"),
    "parameters nest deep": ({"tools": function(parameters=deep(255))}, "tools"),
    "parameters nest too deep": ({"tools": function(parameters=deep(900))}, "tools"),
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


UNIQUE: Any = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}},
    "required": ["a"],
}
NUMBER: Any = {"type": "object", "properties": {"n": {"enum": [31]}}, "required": ["n"]}


def arguments(client: Any, tools: Any) -> Any:
    answer = chat(client, tools=tools, tool_choice="required", parallel_tool_calls=False)
    return json.loads(answer.choices[0].message.tool_calls[0].function.arguments)


def test_a_function_that_is_not_strict_is_guided(client: Any) -> None:
    for strict in ({}, {"strict": None}, {"strict": False}):
        assert arguments(client, function(parameters=NUMBER, **strict)) == {"n": 31}


def test_a_function_without_parameters_gets_none(client: Any) -> None:
    for parameters in ({}, {"parameters": None}, {"parameters": {}}):
        assert arguments(client, function(**parameters)) == {}


def test_a_schema_without_a_type_is_of_objects(client: Any) -> None:
    assert arguments(client, function(parameters={k: NUMBER[k] for k in ("properties", "required")})) == {
        "n": 31
    }


def test_strictness_is_each_function_s(client: Any) -> None:
    strict = {"name": "a", "parameters": UNIQUE, "strict": True}
    loose = {"name": "b", "parameters": UNIQUE}
    both = [{"type": "function", "function": one} for one in (strict, loose)]
    with pytest.raises(openai.BadRequestError, match="uniqueItems is not enforced"):
        chat(client, tools=both)
    answer = chat(client, tools=both[1:], tool_choice="required", max_tokens=8)
    assert any("uniqueItems" in note for note in answer.model_extra["weft"]["guide_notes"])


def test_arguments_of_an_earlier_call_that_nest_too_deep(client: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": deep(900)}}
    with pytest.raises(openai.BadRequestError, match="nests more than"):
        chat(client, messages=[*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}])
