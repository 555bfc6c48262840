"""Errors name the fields that the client sent: by the route's own names, and the one that gave the guide."""

from __future__ import annotations

from typing import Any

import pytest

from support.server.asking import MESSAGES, PROMPT, SCHEMA, ask
from support.server.running import Running

CHAT, COMPLETIONS, RESPONSES = "v1/chat/completions", "v1/completions", "v1/responses"
ANTHROPIC = "v1/messages"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES},
    COMPLETIONS: {"prompt": PROMPT},
    RESPONSES: {"input": PROMPT},
    ANTHROPIC: {"messages": MESSAGES, "max_tokens": 16},
}
BAD = {"type": "objct"}
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": BAD}}
FORMAT: Any = {"type": "json_schema", "name": "x", "schema": BAD}


def refused(server: Running, route: str, more: dict[str, Any]) -> dict[str, Any]:
    status, answer = ask(f"{server.url}/{route}", {**BODIES[route], **more})
    assert status in (400, 404), answer
    told: dict[str, Any] = answer["error"]
    return told


GUIDES: dict[str, dict[str, Any]] = {
    "response_format": {"type": "json_schema", "json_schema": {"schema": BAD, "strict": True}},
    "structured_outputs": {"regex": "[0-9"},
    "guided_json": BAD,
    "guided_regex": "[0-9",
    "guided_choice": [],
    "guided_grammar": "start: (",
    "guide": {"ebnf": "root ::= ("},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", GUIDES)
def test_a_guide_that_does_not_compile_names_its_field(server: Running, field: str, stream: bool) -> None:
    for route in (CHAT, COMPLETIONS):
        told = refused(server, route, {field: GUIDES[field], "stream": stream})
        assert (told["code"], told["param"]) == ("guide_error", field)


def test_what_else_a_guide_names(server: Running) -> None:
    for more, param in (
        ({"tools": [TOOL]}, "tools"),
        ({"response_format": {"type": "text"}, "tools": [TOOL]}, "tools"),
        ({"guide": {"wasm": "nope"}}, "guide"),
        ({"guide": {"regex": "a", "after": ""}}, "guide"),
    ):
        assert refused(server, CHAT, more)["param"] == param


def test_prompts_that_do_not_fit(server: Running) -> None:
    for route, more, param in (
        (CHAT, {"messages": [{"role": "user", "content": "a b " * 4000}]}, "messages"),
        (COMPLETIONS, {"prompt": "a b " * 4000}, "prompt"),
        (COMPLETIONS, {"prompt": "a b " * 400_000}, "prompt"),
        (COMPLETIONS, {"prompt": [1, 10**6]}, "prompt"),
        (COMPLETIONS, {"prompt": [1, -1]}, "prompt"),
        (RESPONSES, {"input": "a b " * 4000}, "input"),
    ):
        assert refused(server, route, more)["param"] == param


def test_a_response_speaks_of_its_own_fields(server: Running) -> None:
    for more, param, said in (
        ({"text": {"format": {**FORMAT, "foo": 1}}}, "text.format.foo", "'text.format.foo'"),
        ({"text": {"format": FORMAT}}, "text.format", "objct"),
        ({"text": {"format": FORMAT}, "stream": True}, "text.format", "objct"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format", "text.format.type is 'yaml'"),
        ({"text": {"format": FORMAT}, "guided_regex": "a"}, "guided_regex", "text.format and guided_regex"),
        ({"input": [{"role": "nobody", "content": "x"}]}, "input", "input.0.role is 'nobody'"),
        ({"input": [{"role": "user", "content": "x"}, {"role": 5}]}, "input", "input.1.role is 5"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input",
            "input.0.content.0.text",
        ),
        ({"input": [{"role": "user"}]}, "input", "input.0.content is missing"),
        ({"input": [{"role": "user", "content": None}]}, "input", "input.0.content is null"),
        ({"input": [{"content": "x"}]}, "input", "input.0.role is missing"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input", "input.0.output is missing"),
        (
            {"text": {"format": {**FORMAT, "json_schema": {}}}},
            "text.format.json_schema",
            "'text.format.schema'",
        ),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format", "has schema"),
        ({"input": 5}, "input", "input: "),
        ({"min_tokens": 9, "max_output_tokens": 2}, "min_tokens", "max_output_tokens"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort", "reasoning.effort: "),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ):
        told = refused(server, RESPONSES, more)
        assert told["param"] == param and said in told["message"], told
    assert refused(server, RESPONSES, {"max_tokens": 3})["param"] == "max_tokens"  # which it did send


MESSAGES_THAT_CAN_NOT_BE: dict[str, tuple[Any, str]] = {
    "no text": ({"role": "user", "content": [{"type": "text"}]}, ".content.0.text is missing"),
    "a number": ({"role": "user", "content": [{"text": 5}]}, ".content.0.text must be a text"),
    "an image": (
        {"role": "user", "content": [{"type": "image_url"}]},
        ".content.0 is of the type 'image_url'; ",
    ),
    "a part that is none": ({"role": "user", "content": [5]}, ".content.0 is 5; it must be an object"),
    "no content": ({"role": "user"}, ".content is missing; it must be a text or a list of parts"),
    "null": ({"role": "user", "content": None}, ".content is null; "),
    "an object": ({"role": "user", "content": {}}, ".content is an object; "),
    "no role": ({"content": "x"}, ".role is missing; it must be one of system, "),
    "null as a role": ({"role": None, "content": "x"}, ".role is null; "),
}


@pytest.mark.parametrize("name", MESSAGES_THAT_CAN_NOT_BE)
def test_messages_that_can_not_be(server: Running, name: str) -> None:
    message, said = MESSAGES_THAT_CAN_NOT_BE[name]
    told = refused(server, CHAT, {"messages": [*MESSAGES, message]})
    assert told["param"] == "messages" and told["message"].startswith(f"messages.1{said}"), told


FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "an empty stop": ({"stop": ""}, "stop"),
    "an empty stop in a list": ({"stop": [""]}, "stop"),
    "no blanks": ({"guide": {"json_schema": SCHEMA, "max_whitespace": 0}}, "guide.max_whitespace"),
    "much free text": (
        {"guide": {"regex": "a", "after": "=", "max_free_tokens": 2**63}},
        "guide.max_free_tokens",
    ),
    "a guide that never ends": ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_that_can_not_be(server: Running, name: str) -> None:
    more, param = FIELDS[name]
    for route in BODIES:
        assert refused(server, route, more)["param"] == param


def test_fields_of_a_chat_that_can_not_be(server: Running) -> None:
    for more, param in (
        ({"thinking_token_budget": 2**63}, "thinking_token_budget"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        ({"prediction": {"type": "content", "content": "x", "text": "y"}}, "prediction"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}], "ignore_eos": True}, "ignore_eos"),
    ):
        assert refused(server, CHAT, more)["param"] == param


NOTHING_LEFT: dict[str, dict[str, Any]] = {
    "tokens": {"guide": {"regex": "[0-9]{2}"}, "allowed_token_ids": [5]},
    "words": {"guide": {"regex": "[0-9]{2}"}, "bad_words": list("0123456789")},
    "tokens without a guide": {"allowed_token_ids": [300], "bad_words": [[300]]},
    "beams": {"model": "plain", "use_beam_search": True, "allowed_token_ids": [300], "bad_words": [[300]]},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", NOTHING_LEFT)
def test_a_request_that_leaves_no_token_is_told(server: Running, name: str, stream: bool) -> None:
    more = {"stream": stream and name != "beams", **NOTHING_LEFT[name]}
    told = refused(server, COMPLETIONS, more)
    assert told["type"] == "invalid_request_error" and "no token" in told["message"], told
