"""/v1/responses, plain and streamed, with conversations that go on."""

from __future__ import annotations

import json
import re
import urllib.parse
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseInputMessageItem, ResponseOutputMessage
from openai.types.responses.response_item_list import ResponseItemList

from support.server.asking import ANSWER, PROMPT, SCHEMA, ask
from support.server.running import Running
from weft.server.protocol.responses import ResponsesBody
from weft.server.reading.responses import SHARED_FIELDS

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


def test_events_tell_how_tokens_came(client: Any) -> None:
    events = list(respond(client, stream=True))
    told = [(event.type, event.model_extra.get("token_origins", [])) for event in events]
    origins = [origin for _, some in told for origin in some]
    assert len(origins) == events[-1].response.usage.output_tokens and {"sampled", "eagle3"} <= set(origins)
    assert {kind for kind, some in told if some} <= {
        "response.output_text.delta",
        "response.output_item.done",
    }


def test_a_conversation_goes_on(client: Any) -> None:
    first = respond(client)
    again = respond(client, input=f"\n{PROMPT}", previous_response_id=first.id)
    assert again.previous_response_id == first.id
    assert again.usage.input_tokens > 2 * first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        respond(client, previous_response_id=first.id)
    unkept = respond(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def listed(server: Running, number: str, **query: Any) -> ResponseItemList:
    """A page of a response's input, every field of which is what OpenAI's client expects."""
    asked = urllib.parse.urlencode(query)
    status, answer = ask(f"{server.url}/v1/responses/{number}/input_items?{asked}")
    assert status == 200, answer
    return ResponseItemList.model_validate(answer)


def test_the_input_of_a_response_is_listed(client: Any, server: Running) -> None:
    """Without its answer, and without instructions, which are not carried over."""
    first = respond(client, instructions="Be brief.")
    (item,) = listed(server, first.id).data
    assert isinstance(item, ResponseInputMessageItem) and item.id.startswith("msg_")
    assert item.role == "user" and [part.to_dict()["text"] for part in item.content] == [PROMPT]
    again = respond(client, input=f"\n{PROMPT}", previous_response_id=first.id)
    items = listed(server, again.id, order="asc").data
    assert items[0] == item and items[1].id == first.output[0].id
    assert [type(one) for one in items] == [
        ResponseInputMessageItem,
        ResponseOutputMessage,
        ResponseInputMessageItem,
    ]
    ids = [one.id for one in items]
    page = listed(server, again.id, limit=2)
    assert [one.id for one in page.data] == [page.first_id, page.last_id] == [ids[2], ids[1]]
    assert page.has_more and not listed(server, again.id, limit=1, after=ids[1]).has_more
    for order, expected in (("asc", ids), ("desc", ids[::-1])):
        found = client.responses.input_items.list(again.id, limit=1, order=order)
        assert [one.id for one in found] == expected  # page by page, by `after`
    for query, param in (
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"order": "up"}, "order"),
        ({"after": "x" * 5000}, "after"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.input_items.list(again.id, **query)
        assert caught.value.param == param and len(caught.value.message) < 400


def test_calls_and_their_results_are_listed(client: Any, server: Running) -> None:
    given: list[Any] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
        {"role": "user", "content": PROMPT},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"role": "assistant", "content": "Let me see."},
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "find_person", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "found"},
    ]
    response = respond(client, input=given, max_output_tokens=4)
    items = listed(server, response.id, order="asc").data
    kinds = [one.type for one in items]
    assert kinds == ["message", "message", "reasoning", "message", "function_call", "function_call_output"]
    assert [items[2].id, items[4].id] == ["rs_1", "fc_1"] and len({one.id for one in items}) == 6
    again = respond(client, input=given, previous_response_id=response.id, max_output_tokens=4)
    ids = [one.id for one in listed(server, again.id, limit=100).data]
    assert len(ids) == len(set(ids)) == 6 + len(response.output) + 6


def test_instructions_are_not_carried_over(client: Any) -> None:
    plain, told = respond(client), respond(client, instructions="Answer.")
    after = [respond(client, previous_response_id=one.id, max_output_tokens=2) for one in (plain, told)]
    spent = [
        one.usage.input_tokens - first.usage.output_tokens
        for one, first in zip(after, (plain, told), strict=True)
    ]
    assert spent[0] == spent[1]


def test_tools_are_called_and_answered(client: Any) -> None:
    choice: Any = {"type": "function", "name": "find_person"}
    response = respond(client, tools=[TOOL], tool_choice=choice)
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("find_person", ANSWER)
    deltas: list[str] = []
    attempts = 0
    while len(deltas) <= 1:  # a fast model may have a whole call before its first part is sent
        events = list(respond(client, tools=[TOOL], tool_choice=choice, stream=True))
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        (done,) = [event for event in events if event.type == "response.function_call_arguments.done"]
        assert "".join(deltas) == done.arguments == call.arguments
        attempts += 1
        assert attempts < 100
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "found"}
    after = respond(client, input=[output], previous_response_id=response.id, max_output_tokens=4)
    assert after.usage.input_tokens > response.usage.input_tokens


@pytest.mark.parametrize(
    ("guide", "form"),
    [
        ({"guided_regex": "[0-9]{3}"}, "[0-9]{3}"),
        ({"guided_choice": ["yes", "no"]}, "yes|no"),
        ({"guided_grammar": 'start: "yes" | "no"'}, "yes|no"),
        ({"guided_json": {"const": "a"}}, '"a"'),
        ({"guided_json": {"const": 7}, "text": {"format": {"type": "text"}}}, "7"),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
        ({"guide": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
    ],
)
def test_answers_obey_a_guide(client: Any, guide: dict[str, Any], form: str) -> None:
    assert re.fullmatch(form, respond(client, extra_body=guide).output_text)


def test_a_tool_may_come_as_a_chat_has_it(server: Running) -> None:
    """The answer tells of it in its own form."""
    function = {"name": "f", "description": "of x"}
    asked = {"input": PROMPT, "max_output_tokens": 1, "tools": [{"type": "function", "function": function}]}
    status, answer = ask(f"{server.url}/v1/responses", asked)
    assert status == 200 and answer["tools"] == [{"type": "function", **function}]
    for tool, said in (
        ({"function": function, "name": "f"}, "has 'name' beside 'function'"),
        ({"function": 5}, "has a function that is 5"),
        ({}, "has no name that is a text"),
    ):
        status, answer = ask(f"{server.url}/v1/responses", {**asked, "tools": [{"type": "function", **tool}]})
        message = answer["error"]["message"]
        assert status == 400 and message.startswith(f"tools.0: {said}; a tool here is "), message
        assert '{"type": "function", "name": ...' in message


def test_no_field_of_a_response_is_dropped() -> None:
    """Each is a chat's, and passed on as it is, or has code of its own."""
    own = {
        "input", "instructions", "previous_response_id", "max_output_tokens", "text", "tools", "tool_choice",
        "reasoning", "include", "top_logprobs", "store", "stream_options", "response_format", "metadata",
    }  # fmt: skip
    own |= ResponsesBody.NO_EFFECT.keys()
    assert {*ResponsesBody.model_fields} == {*SHARED_FIELDS} | own and not own & {*SHARED_FIELDS}


def test_what_is_wrong_is_named(client: Any) -> None:
    for more, param in (
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"input": [{"type": "computer_call"}]}, "input"),
        ({"input": [{"type": ["x"]}]}, "input"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input"),
        ({"previous_response_id": "resp_0"}, "previous_response_id"),
    ):
        with pytest.raises(openai.APIStatusError) as caught:
            respond(client, **more)
        assert caught.value.status_code in (400, 404) and caught.value.param == param
    with pytest.raises(openai.BadRequestError, match="objct"):
        respond(client, text={"format": {**FORMAT["format"], "schema": {"type": "objct"}}}, stream=True)
