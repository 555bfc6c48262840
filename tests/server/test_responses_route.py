"""/v1/responses, plain and streamed, with conversations that go on."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from support.server.asking import ANSWER, PROMPT, SCHEMA, ask
from support.server.running import Running

TOOL: Any = {"type": "function", "name": "find_person", "parameters": SCHEMA, "strict": True}
FORMAT: Any = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}}


def respond(client: Any, **more: Any) -> Any:
    asked: dict[str, Any] = {
        "model": "tiny",
        "input": PROMPT,
        "temperature": 0,
        "max_output_tokens": 120,
        **more,
    }
    return client.responses.create(**asked)


def test_a_response(client: Any) -> None:
    response = respond(client, text=FORMAT)
    assert json.loads(response.output_text) == ANSWER and response.status == "completed"
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    cut = respond(client, max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"


def test_events_come_in_order(client: Any) -> None:
    with client.responses.stream(model="tiny", input=PROMPT, temperature=0, max_output_tokens=40) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == final.output_text and json.loads(text) == ANSWER


def test_a_conversation_goes_on(client: Any, server: Running) -> None:
    first = respond(client)
    again = respond(client, input=f"\n{PROMPT}", previous_response_id=first.id)
    assert again.previous_response_id == first.id
    assert again.usage.input_tokens > 2 * first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    items = ask(f"{server.url}/v1/responses/{first.id}/input_items")[1]["data"]
    assert [item["role"] for item in items] == ["user", "assistant"]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        respond(client, previous_response_id=first.id)
    unkept = respond(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_tools_are_called_and_answered(client: Any) -> None:
    choice: Any = {"type": "function", "name": "find_person"}
    response = respond(client, tools=[TOOL], tool_choice=choice)
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("find_person", ANSWER)
    events = list(respond(client, tools=[TOOL], tool_choice=choice, stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(deltas) == done.arguments == call.arguments and len(deltas) > 1
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "found"}
    after = respond(client, input=[output], previous_response_id=response.id, max_output_tokens=4)
    assert after.usage.input_tokens > response.usage.input_tokens


def test_what_is_wrong_is_named(client: Any) -> None:
    for more, param in (
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            respond(client, **more)
        assert caught.value.status_code in (400, 404) and caught.value.param == param
    with pytest.raises(openai.BadRequestError, match="objct"):
        respond(client, text={"format": {**FORMAT["format"], "schema": {"type": "objct"}}}, stream=True)
