"""Fields without effect are taken, and every form of an answer names them."""

from __future__ import annotations

from typing import Any

import pytest

from support.server.asking import MESSAGES, PROMPT, ask
from support.server.running import Running
from weft.server.errors import ApiError
from weft.server.protocol.body import Body
from weft.server.protocol.generation import ChatBody, CompletionBody
from weft.server.protocol.messages import MessagesBody
from weft.server.protocol.responses import ResponsesBody

CHAT: dict[str, Any] = {"messages": MESSAGES}
TEXT: dict[str, Any] = {"prompt": PROMPT}
RESPONSE: dict[str, Any] = {"input": PROMPT}
MESSAGE: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 8}
SHARED: list[tuple[str, Any]] = [
    ("user", "ada"),
    ("safety_identifier", "5f"),
    ("prompt_cache_key", "a"),
    ("prompt_cache_retention", "24h"),
    ("prompt_cache_options", {"mode": "explicit"}),
    ("service_tier", "flex"),
]
CASES: list[tuple[type[Body], dict[str, Any], list[str]]] = [
    *((kind, {**body, name: value}, [name]) for kind, body in (
        (ChatBody, CHAT), (CompletionBody, TEXT), (ResponsesBody, RESPONSE)
    ) for name, value in SHARED),
    (ChatBody, {**CHAT, "store": True, "verbosity": "high"}, ["store", "verbosity"]),
    (ChatBody, {**CHAT, "metadata": {"a": "b"}}, ["metadata"]),
    (CompletionBody, {**TEXT, "store": True}, ["store"]),
    (ResponsesBody, {**RESPONSE, "max_tool_calls": 3}, ["max_tool_calls"]),
    (ResponsesBody, {**RESPONSE, "text": {"verbosity": "low"}}, ["text.verbosity"]),
    (
        ResponsesBody,
        {**RESPONSE, "include": ["reasoning.encrypted_content"], "user": "ada"},
        ["include.reasoning.encrypted_content", "user"],
    ),
    (
        MessagesBody,
        {**MESSAGE, "service_tier": "flex", "metadata": {"user_id": "ada"}, "cache_control": {"type": "ephemeral"}},
        ["cache_control", "metadata", "service_tier"],
    ),
    (MessagesBody, {**MESSAGE, "service_tier": "standard_only"}, []),
    (
        MessagesBody,
        {**MESSAGE, "output_config": {"effort": "low", "task_budget": {"type": "tokens", "total": 9}}},
        ["output_config.task_budget"],
    ),
    # These ask for the usual behaviour, or have their effect.
    (ChatBody, {**CHAT, "store": False, "verbosity": "medium", "service_tier": "auto", "user": None}, []),
    (ChatBody, {**CHAT, "prompt_cache_retention": "in_memory", "metadata": {}}, []),
    (ResponsesBody, {**RESPONSE, "store": True, "metadata": {"a": "b"}}, []),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "data", "ignored"), CASES)
def test_a_body_knows_its_fields_without_effect(
    kind: type[Body], data: dict[str, Any], ignored: list[str]
) -> None:
    assert kind.read(data).ignored == ignored


@pytest.mark.parametrize(
    ("kind", "data", "param"),
    [
        (ChatBody, {**CHAT, "verbosity": "loud"}, "verbosity"),
        (ChatBody, {**CHAT, "store": "yes"}, "store"),
        (ChatBody, {**CHAT, "service_tier": 3}, "service_tier"),
        (
            CompletionBody,
            {**TEXT, "verbosity": "low"},
            "verbosity",
        ),  # no field of this route, at OpenAI neither
        (ResponsesBody, {**RESPONSE, "text": {"verbosity": 1}}, "text.verbosity"),
        (ResponsesBody, {**RESPONSE, "max_tool_calls": 0}, "max_tool_calls"),
    ],
)
def test_wrong_values_are_still_refused(kind: type[Body], data: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        kind.read(data)
    assert caught.value.status == 400 and caught.value.param == param


def test_whole_answers_name_them(client: Any) -> None:
    asked = {"model": "tiny", "temperature": 0}
    chat = client.chat.completions.with_raw_response.create(
        **asked, messages=MESSAGES, max_tokens=2, service_tier="flex", store=True, verbosity="low"
    )
    text = client.completions.with_raw_response.create(**asked, prompt=PROMPT, max_tokens=2, user="ada")
    response = client.responses.with_raw_response.create(
        **asked,
        input=PROMPT,
        max_output_tokens=2,
        service_tier="flex",
        text={"verbosity": "low"},
        metadata={"a": "b"},
    )
    for answer, names in (
        (chat, ["service_tier", "store", "verbosity"]),
        (text, ["user"]),
        (response, ["service_tier", "text.verbosity"]),
    ):
        assert answer.headers["x-weft-ignored"] == ", ".join(names)
        assert answer.parse().weft["ignored"] == names


def test_streams_name_them(client: Any) -> None:
    with client.chat.completions.with_streaming_response.create(
        model="tiny",
        messages=MESSAGES,
        max_tokens=2,
        stream=True,
        stream_options={"include_usage": True},
        store=True,
    ) as answer:
        assert answer.headers["x-weft-ignored"] == "store"
        *_, last = answer.parse()
    assert last.weft["ignored"] == ["store"]


def test_an_answer_without_them_says_nothing(server: Running, client: Any) -> None:
    answer = client.chat.completions.with_raw_response.create(model="tiny", messages=MESSAGES, max_tokens=2)
    assert "x-weft-ignored" not in answer.headers and answer.parse().weft["ignored"] is None
    status, refused = ask(f"{server.url}/v1/chat/completions", {**CHAT, "audio": {"voice": "alloy"}})
    assert status == 400 and "models here write text" in refused["error"]["message"]
