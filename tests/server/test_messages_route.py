"""/v1/messages, plain and streamed: Anthropic's API, over plain HTTP."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from sys import float_info
from typing import Any

import pytest
from pydantic_core import from_json

from support.server.asking import ANSWER, ENDLESS, MESSAGES, PROMPT, SCHEMA, ask
from support.server.running import Running, running, running_thinker
from support.server.sockets import wait_for
from weft.parsing import CallArguments, CallBegin, CallEnd
from weft.server.models import ServedModel
from weft.server.protocol.messages import CountTokensBody, MessagesBody
from weft.server.reading.messages import SHARED_FIELDS, messages_of
from weft.server.settings import ServerConfig
from weft.server.writing.messages import ContentBlocks

ROUTE = "/v1/messages"
TOOLS: list[Any] = [
    {"name": "find_person", "description": "Finds.", "input_schema": SCHEMA, "strict": True},
    {"name": "now", "input_schema": {"type": "object", "properties": {}}},
]
FIND: Any = {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "find_person"}}
FORMAT: Any = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}


def send(server: Running, **fields: Any) -> Any:
    """Return the message that answers a request, which must succeed."""
    body = {"model": "tiny", "max_tokens": 120, "messages": MESSAGES, "temperature": 0, **fields}
    status, answer = ask(f"{server.url}{ROUTE}", body)
    assert status == 200, answer
    return answer


def stream(server: Running, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of a streamed answer. Each event's name must be its type."""
    events = []
    for block in send(server, stream=True, **fields).strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that a stream's events make, as Anthropic's clients build it."""
    first, *inner, end, stop = events
    assert (first["type"], end["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    message: dict[str, Any] = first["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    is_open, arguments = False, ""
    for event in inner:
        blocks = message["content"]
        match event["type"]:
            case "content_block_start":
                assert not is_open and event["index"] == len(blocks)
                is_open, arguments = True, ""
                blocks.append(event["content_block"])
            case "content_block_stop":
                assert is_open and event["index"] == len(blocks) - 1
                is_open = False
                if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = from_json(arguments or "{}", allow_partial=True)
            case "content_block_delta":
                assert is_open and event["index"] == len(blocks) - 1
                match event["delta"]:
                    case {"type": "text_delta", "text": text}:
                        blocks[-1]["text"] += text
                    case {"type": "thinking_delta", "thinking": text}:
                        blocks[-1]["thinking"] += text
                    case {"type": "signature_delta", "signature": text}:
                        blocks[-1]["signature"] = text
                    case {"type": "input_json_delta", "partial_json": text}:
                        arguments += text
            case kind:
                pytest.fail(f"unexpected event {kind}")
    assert not is_open
    return {**message, **end["delta"], "usage": end["usage"], "weft": end["weft"]}


def told(message: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a message that do not depend on the run."""
    content = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    kept = {name: message[name] for name in ("stop_reason", "stop_sequence", "role", "type", "model")}
    return {**kept, "content": content, "output_tokens": message["usage"]["output_tokens"]}


def refused(server: Running, fields: dict[str, Any], route: str = ROUTE) -> dict[str, Any]:
    """Return the error of a 400."""
    body = {"max_tokens": 8, "messages": MESSAGES, **fields}
    status, answer = ask(f"{server.url}{route}", body)
    assert status == 400 and answer["type"] == "error" and answer["request_id"], answer
    error: dict[str, Any] = answer["error"]
    assert error["type"] == "invalid_request_error"
    return error


# -- answers


def test_a_message(server: Running) -> None:
    message = send(server)
    assert message["id"].startswith("msg_") and message["role"] == "assistant"
    (block,) = message["content"]
    assert block["type"] == "text" and json.loads(block["text"]) == ANSWER
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    usage = message["usage"]
    assert usage["output_tokens"] == sum(message["weft"]["origins"].values())
    status, counted = ask(f"{server.url}{ROUTE}/count_tokens", {"messages": MESSAGES})
    assert status == 200
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert send(server)["usage"]["cache_read_input_tokens"] > 0


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "sampled": {"temperature": 1.0},
    "format": FORMAT,
    "older format": {"output_format": FORMAT["output_config"]["format"]},
    "a call": FIND,
    "several calls": {"tools": TOOLS, "tool_choice": {"type": "any"}, "temperature": 1.0},
    "auto": {"tools": TOOLS, "tool_choice": {"type": "auto"}},
    "stop": {"stop_sequences": ["Berg", "nothing"]},
    "cut": {"max_tokens": 5},
    "regex": {"guide": {"regex": "[0-9]{3}"}},
}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", KINDS)
def test_a_stream_is_the_message(server: Running, name: str, seed: int) -> None:
    asked = {**KINDS[name], "seed": seed}
    events = stream(server, **asked)
    assert told(joined(events)) == told(send(server, **asked))
    origins = [origin for event in events for origin in event.get("token_origins", [])]
    assert len(origins) == events[-2]["usage"]["output_tokens"]
    assert events[0]["message"]["usage"]["output_tokens"] == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_gives_the_text_of_a_chat(server: Running, seed: int) -> None:
    sampled = {"messages": MESSAGES, "seed": seed, "temperature": 1.0, "max_tokens": 40, "model": "tiny"}
    status, chat = ask(f"{server.url}/v1/chat/completions", sampled)
    (block,) = send(server, **sampled)["content"]
    assert status == 200 and block["text"] == chat["choices"][0]["message"]["content"]


def test_ends(server: Running) -> None:
    assert send(server, max_tokens=3)["stop_reason"] == "max_tokens"
    stopped = send(server, stop_sequences=["Berg"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "Berg")
    assert stopped["content"][0]["text"] == '{"name": "Ada '
    full = send(server, max_tokens=100_000, ignore_eos=True)
    assert full["stop_reason"] == "model_context_window_exceeded"
    assert sum(full["usage"][f"{kind}_tokens"] for kind in ("input", "cache_read_input", "output")) == 1024


def test_a_last_message_of_the_assistant_is_continued(server: Running) -> None:
    whole = send(server)["content"][0]["text"]
    begun: Any = [*MESSAGES, {"role": "assistant", "content": [{"type": "text", "text": whole[:13]}]}]
    assert whole.startswith('{"name": "Ada')
    assert send(server, messages=begun)["content"][0]["text"] == whole[13:]


def test_a_format_is_enforced(server: Running) -> None:
    text = send(server, **FORMAT, temperature=1.0, seed=5)["content"][0]["text"]
    assert json.loads(text).keys() == {"name", "age"}


# -- tools


def test_a_call(server: Running) -> None:
    message = send(server, **FIND)
    (call,) = message["content"]
    assert message["stop_reason"] == "tool_use" and call["id"].startswith("toolu_")
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "find_person", ANSWER)
    num_deltas = []
    while (
        max(num_deltas, default=0) < 2
    ):  # a fast model may have the whole call before the first delta is sent
        events = stream(server, **FIND)
        (start,) = [event for event in events if event["type"] == "content_block_start"]
        assert start["content_block"]["input"] == {}
        deltas = [
            event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"
        ]
        assert json.loads("".join(deltas)) == ANSWER
        num_deltas.append(len(deltas))
        assert len(num_deltas) < 100


def test_one_call_at_most(server: Running) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    for seed in range(4):
        message = send(server, tools=TOOLS, tool_choice=choice, temperature=1.0, seed=seed)
        assert [block["type"] for block in message["content"]] == ["tool_use"]


def test_none_calls_nothing(server: Running) -> None:
    message = send(server, tools=TOOLS, tool_choice={"type": "none"}, guide={"regex": "[0-9]{2}"})
    assert message["content"][0]["text"].isdigit()


def test_a_call_that_is_cut_has_its_complete_part(server: Running) -> None:
    counts = range(30, 60, 3)
    inputs = []
    for count in counts:
        message = send(server, **FIND, max_tokens=count)
        assert message["stop_reason"] == "max_tokens"
        inputs += [block["input"] for block in message["content"] if block["type"] == "tool_use"]
        text = "".join(
            event["delta"].get("partial_json", "")
            for event in stream(server, **FIND, max_tokens=count)
            if event["type"] == "content_block_delta"
        )
        assert json.dumps(ANSWER).startswith(text)
    assert {} in inputs and {"name": "Ada Berg"} in inputs
    assert all(given.items() <= ANSWER.items() or given["age"] == 3 for given in inputs)


def test_a_turn_after_a_call(server: Running) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "it is noon"}
    before: list[Any] = [
        {"role": "user", "content": "When is it?"},
        {"role": "assistant", "content": [{"type": "text", "text": "I see."}, call]},
    ]
    after = [*before, {"role": "user", "content": [result, {"type": "text", "text": PROMPT}]}]
    message = send(server, messages=after, tools=TOOLS)
    assert json.loads(message["content"][0]["text"]) == ANSWER
    status, alone = ask(f"{server.url}{ROUTE}/count_tokens", {"messages": MESSAGES, "tools": TOOLS})
    status, counted = ask(f"{server.url}{ROUTE}/count_tokens", {"messages": after, "tools": TOOLS})
    assert status == 200 and counted["input_tokens"] > alone["input_tokens"] + 5
    assert "give its tool_result" in refused(server, {"messages": before, "tools": TOOLS})["message"]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": 1e999, "b": [-1e999, 0.5]}', {"a": float_info.max, "b": [-float_info.max, 0.5]}),
        ('{"a": NaN}', {}),
        ("[1]", {}),
        ('{"a": [1, {"b": "x', {"a": [1, {}]}),
        ("", {}),
    ],
)
def test_an_input_is_json(arguments: str, value: Any) -> None:
    """A number that overflows becomes the largest one, because JSON has no infinity."""
    blocks = ContentBlocks()
    for part in (CallBegin(0, "f"), CallArguments(0, arguments), CallEnd(0)):
        blocks.add(part)
    (block,) = blocks.blocks
    assert block["input"] == value
    json.dumps(block, allow_nan=False)


# -- messages


def messages(**fields: Any) -> list[dict[str, Any]]:
    return messages_of(CountTokensBody.read(fields))


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def test_messages_become_a_chat() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "weft"}
    calls = [{"type": "tool_use", "id": f"t{i}", "name": "f", "input": {"i": i}} for i in (1, 2)]
    hidden = {"type": "redacted_thinking", "data": "x"}
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [text("a"), text("b")]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "no", "is_error": True},
    ]
    chat = messages(
        system=[text("Be brief.", cache_control={"type": "ephemeral"})],
        messages=[
            {"role": "user", "content": "x"},
            {"role": "user", "content": [text("y", cache_control={"type": "ephemeral"})]},
            {"role": "assistant", "content": [thought, hidden, text("I call."), *calls]},
            {"role": "user", "content": [*results, text("go on")]},
            {"role": "assistant", "content": []},
        ],
    )
    functions = [{"name": "f", "arguments": {"i": i}} for i in (1, 2)]
    assert chat == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [text("x"), text("y")]},
        {
            "role": "assistant",
            "content": "I call.",
            "tool_calls": [
                {"id": f"t{i}", "type": "function", "function": function}
                for i, function in enumerate(functions, 1)
            ],
            "reasoning_content": "hm",
        },
        {"role": "tool", "tool_call_id": "t1", "content": [text("a"), text("b")]},
        {"role": "tool", "tool_call_id": "t2", "content": [text("Error:"), text("no")]},
        {"role": "user", "content": "go on"},
        {"role": "assistant", "content": ""},
    ]


def test_messages_of_one_role_are_joined() -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    (user, answer) = messages(
        messages=[
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [thought, text("a")]},
            {"role": "assistant", "content": [thought, call]},
        ]
    )
    assert user == {"role": "user", "content": "x"}
    assert (answer["content"], answer["reasoning_content"]) == ("a", "hm\nhm")
    assert [one["id"] for one in answer["tool_calls"]] == ["t"]


def test_joining_takes_linear_time() -> None:
    """A body of a few megabytes must not occupy a thread for long."""
    thoughts = ["x" * 2_000_000, *["y"] * 9_000]
    begun = time.thread_time()
    (answer,) = messages(
        messages=[
            {"role": "assistant", "content": [{"type": "thinking", "thinking": thought, "signature": ""}]}
            for thought in thoughts
        ]
    )
    assert answer["reasoning_content"] == "\n".join(thoughts)
    assert time.thread_time() - begun < 1.0


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "no max_tokens": ({"max_tokens": None}, "max_tokens", "max_tokens: must be an integer"),
    "no answer": ({"max_tokens": 0}, "max_tokens", "must be at least 1"),
    "another API's field": ({"response_format": {"type": "text"}}, "response_format", "give output_config"),
    "another name": ({"stop": "x"}, "stop", "give stop_sequences"),
    "another name's hint": ({"reasoning_effort": "low"}, "reasoning_effort", '"output_config": {"effort"'),
    "an unknown field": ({"temprature": 1}, "temprature", "did you mean 'temperature'?"),
    "an empty stop": ({"stop_sequences": [""]}, "stop_sequences", "stop_sequences holds an empty word"),
    "a role": ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "messages.0.role is 'tool'"),
    "no role": ({"messages": [{"content": "x"}]}, "messages", "messages.0.role is missing"),
    "no content": ({"messages": [{"role": "user"}]}, "messages", "messages.0.content is missing"),
    "a content": ({"messages": [{"role": "user", "content": 5}]}, "messages", "messages.0.content is 5"),
    "no messages": ({"messages": []}, "messages", "it must have at least one"),
    "a system": ({"system": [{"type": "image"}]}, "system", "system.0 is of the type 'image'"),
    "a server's tool": (
        {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]},
        "tools.0",
        "is of type 'web_search_20250305'",
    ),
    "a chat's tool": (
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools.0",
        '{"name": ..., "description": ..., "input_schema": ...}',
    ),
    "a tool's member": (
        {"tools": [{"name": "f", "input_schema": {}, "parameters": {}}]},
        "tools.0.parameters",
        "unknown field",
    ),
    "a choice without tools": ({"tool_choice": {"type": "any"}}, "tool_choice", "needs tools"),
    "a choice without a name": (
        {"tools": TOOLS, "tool_choice": {"type": "tool"}},
        "tool_choice",
        "tool_choice.name is missing",
    ),
    "a choice of another tool": (
        {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "g"}},
        "tool_choice",
        "'g', which is none of the tools",
    ),
    "a kind of thinking": ({"thinking": {"type": "much"}}, "thinking.type", "'enabled', 'adaptive'"),
    "two formats": (
        {**FORMAT, "output_format": FORMAT["output_config"]["format"]},
        "output_format",
        "the older name",
    ),
    "a schema": (
        {"output_config": {"format": {"type": "json_schema", "schema": {"type": "objct"}}}},
        "output_config.format",
        "objct",
    ),
    "tools and a format": ({**FORMAT, "tools": TOOLS}, "tools", "an answer has one guide"),
    "a format and a guide": (
        {**FORMAT, "guided_regex": "a"},
        "guided_regex",
        "output_config.format and guided_regex",
    ),
    "servers": ({"mcp_servers": [{"type": "url"}]}, "mcp_servers", "the server calls no other server"),
    "a thread": ({"thread": {"type": "create"}}, "thread", "send all messages"),
    "a long prompt": (
        {"messages": [{"role": "user", "content": "a b " * 4000}]},
        "messages",
        "max_model_len",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(server: Running, name: str) -> None:
    fields, param, words = WRONG[name]
    for more in ({}, {"stream": True}):
        error = refused(server, {**fields, **more})
        assert error["param"] == param and words in error["message"], error


BLOCKS: dict[str, tuple[Any, str]] = {
    "image": (
        {"type": "image", "source": {}},
        " is of the type 'image'; models here read text: give text or",
    ),
    "document": ({"type": "document"}, " is of the type 'document'"),
    "number": (5, " is 5; it must be an object"),
    "no type": ({"text": "x"}, " is of the type null"),
    "no text": ({"type": "text"}, ".text is missing"),
    "no id": ({"type": "tool_result", "content": "x"}, ".tool_use_id is missing"),
    "image of a tool": (
        {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]},
        ".content.0 is of the type 'image'",
    ),
    "result": (
        {"type": "tool_result", "tool_use_id": "t", "content": 5},
        ".content is 5; it must be a text or a list of blocks",
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_that_are_refused(server: Running, name: str) -> None:
    block, words = BLOCKS[name]
    for route in (ROUTE, f"{ROUTE}/count_tokens"):
        body: Any = {"messages": [{"role": "user", "content": [text("x"), block]}]}
        status, answer = ask(
            f"{server.url}{route}", {**body, **({"max_tokens": 4} if route == ROUTE else {})}
        )
        assert status == 400 and answer["error"]["message"].startswith(f"messages.0.content.1{words}"), answer


def test_calls_that_are_refused(server: Running) -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    for more, words in (({"input": "{}"}, ".input must be an object"), ({"name": 5}, ".name must be a text")):
        conversation = [{"role": "assistant", "content": [{**call, **more}]}, *MESSAGES]
        error = refused(server, {"messages": conversation})
        assert error["message"] == f"messages.0.content.0{words}"
    for route in (ROUTE, f"{ROUTE}/count_tokens"):
        body = {"messages": [{"role": "assistant", "content": [5]}]}
        status, answer = ask(f"{server.url}{route}", body | ({"max_tokens": 4} if route == ROUTE else {}))
        assert status == 400 and "messages.0.content.0 is 5" in answer["error"]["message"], answer


def test_no_field_is_dropped() -> None:
    """Each is a chat's, and passed on as it is, or has code of its own, or has no effect."""
    here = {
        "messages", "system", "tools", "tool_choice", "thinking", "output_config", "output_format", "stop_sequences",
    }  # fmt: skip
    ignored = {*MessagesBody.NO_EFFECT}
    assert {"cache_control", "context_management", "service_tier", "metadata", "user"} <= ignored
    refused_here = {"stop", "response_format", "thread"}
    assert {*MessagesBody.model_fields} == {*SHARED_FIELDS} | here | ignored | refused_here
    assert not (here | ignored | refused_here) & {*SHARED_FIELDS}


def test_a_code_is_where_anthropics_clients_read_it(server: Running) -> None:
    """With this one they go on without a thread."""
    error = refused(server, {"thread": {"type": "create"}})
    assert error["code"] == "thread_unsupported_request" == error["details"]["error_code"]
    assert "details" not in refused(server, {"max_tokens": 0})


def test_a_coding_agents_request(server: Running) -> None:
    """Blocks with cache_control, fields of betas, and limits that are larger than the model."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    tool: Any = {
        "name": "Bash",
        "description": "Runs a command.",
        "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"command": {"type": "string"}, "timeout": {"type": "number", "maximum": 600000}},
            "required": ["command"],
            "additionalProperties": False,
        },
    }
    body = {
        "model": "tiny",
        "max_tokens": 32_000,
        "system": [text("You are an agent."), text("Be brief.", **mark)],
        "tools": [tool, {**tool, "name": "mcp__x__run", **mark, "eager_input_streaming": True}],
        "messages": [{"role": "user", "content": [text("List files."), text(PROMPT, **mark)]}],
        "metadata": {"user_id": "user_" + "0" * 600},
        "thinking": {"type": "enabled", "budget_tokens": 31_999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "max"},
        "service_tier": "auto",
        "temperature": 1,
        "stream": True,
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a-2025-02-19,b-2025-05-14"}
    status, answer = ask(f"{server.url}{ROUTE}?beta=true", body, headers=headers)
    assert status == 200 and "event: message_stop" in answer, answer
    counted = {name: body[name] for name in ("model", "system", "tools", "messages", "thinking")}
    assert ask(f"{server.url}{ROUTE}/count_tokens?beta=true", counted, headers=headers)[0] == 200


# -- thinking

# weft-tiny does not think: the prompt begins its thinking, and a budget ends it.
INSIDE: Any = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "<think>"}]
THINKING: Any = {"messages": INSIDE, "thinking": {"type": "enabled", "budget_tokens": 6}, **FORMAT}


@pytest.fixture(scope="module")
def thinker() -> Iterator[Running]:
    with running_thinker() as started:
        yield started


def test_thinking_is_a_block(thinker: Running) -> None:
    message = send(thinker, **THINKING)
    thought, answer = message["content"]
    assert thought["type"] == "thinking" and thought["thinking"] and thought["signature"] == "weft"
    assert "</think>" not in thought["thinking"] and json.loads(answer["text"]).keys() == ANSWER.keys()
    assert 0 < message["usage"]["output_tokens_details"]["thinking_tokens"] <= 8
    events = stream(thinker, **THINKING)
    assert told(joined(events)) == told(message)
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert [kind for i, kind in enumerate(deltas) if kind != deltas[i - 1]] == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
    ]
    again = [*INSIDE[:1], {"role": "assistant", "content": message["content"]}, *MESSAGES]
    assert send(thinker, messages=again, max_tokens=2)["content"]


def test_thinking_can_be_omitted(thinker: Running) -> None:
    asked = {**THINKING, "thinking": {**THINKING["thinking"], "display": "omitted"}}
    whole, shown = send(thinker, **asked), send(thinker, **THINKING)
    assert whole["content"] == [{**shown["content"][0], "thinking": ""}, shown["content"][1]]
    assert told(joined(stream(thinker, **asked))) == told(whole)


def test_a_budget_that_nothing_enforces_has_no_effect(thinker: Running, server: Running) -> None:
    """There is no guide after the thinking, there are tools, or the model does not think, or no longer."""
    budget: Any = {"thinking": {"type": "enabled", "budget_tokens": 6}, "max_tokens": 8}
    after: Any = [INSIDE[0], {"role": "assistant", "content": "<think>hm</think>"}]
    assert send(thinker, **budget, **FORMAT, messages=after)["content"][0]["type"] == "text"
    assert send(thinker, **budget)["content"]
    assert send(thinker, **budget, tools=TOOLS)["content"]
    assert send(server, **budget, **FORMAT)["content"]


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({}, "-"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "-True"),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, "high-True"),
        ({"output_config": {"effort": "max"}}, "xhigh-"),
        ({"thinking": {"type": "disabled"}}, "none-False"),
        ({"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"enable_thinking": False}}, "-False"),
    ],
)
def test_templates_see_the_thinking(
    models: dict[str, ServedModel], fields: dict[str, Any], variables: str
) -> None:
    from weft.server.reading.chat import prompt_of
    from weft.server.reading.messages import template_fields

    body = CountTokensBody.read({"messages": MESSAGES, **fields})
    text = models["tiny"].text
    tokenizer = text.tokenizer_for("a conversation")
    kept = tokenizer.chat_template
    tokenizer.chat_template = "{{ reasoning_effort }}-{{ enable_thinking }}"
    try:
        messages = messages_of(body)
        assert prompt_of(text, messages, template_fields(body, messages)) == variables
    finally:
        tokenizer.chat_template = kept


# -- keys, limits and errors


@pytest.fixture(scope="module")
def keyed(models: dict[str, ServedModel]) -> Iterator[Running]:
    config = ServerConfig(
        api_keys={"ada": "key-of-ada", "bo": "key-of-bo"}, max_body_bytes=20_000, max_requests_per_key=1
    )
    with running(models, config) as started:
        yield started


def error_of(server: Running, fields: dict[str, Any], headers: dict[str, str], route: str = ROUTE) -> Any:
    """Return the status and type of an error, whose form must be Anthropic's."""
    body = json.dumps({"max_tokens": 4, "messages": MESSAGES, **fields}).encode()
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(f"{server.url}{route}", body, headers), timeout=60)
    with caught.value as error:
        answer = json.loads(error.read())
    assert answer["type"] == "error" and answer["error"]["message"]
    assert answer["request_id"] == error.headers["request-id"] == error.headers["x-request-id"]
    return error.code, answer["error"]["type"]


def test_keys(keyed: Running) -> None:
    body = {"max_tokens": 4, "messages": MESSAGES}
    ada, bo = {"x-api-key": "key-of-ada"}, {"Authorization": "Bearer key-of-bo"}
    for headers in (ada, bo, {**ada, "Authorization": "Bearer key-of-ada"}):
        assert ask(f"{keyed.url}{ROUTE}", body, headers=headers)[0] == 200
        assert ask(f"{keyed.url}/v1/models", headers=headers)[0] == 200
    for wrong in (
        {},
        {"x-api-key": "wrong"},
        {"x-api-key": ""},
        {**ada, **bo},
        {**ada, "Authorization": "x"},
    ):
        assert error_of(keyed, {}, wrong) == (401, "authentication_error")
        assert ask(f"{keyed.url}/v1/models", headers=wrong)[1]["error"]["code"] == "invalid_api_key"


def test_errors_have_anthropics_form(keyed: Running) -> None:
    ada = {"x-api-key": "key-of-ada"}
    assert error_of(keyed, {"model": "nope"}, ada) == (404, "not_found_error")
    assert error_of(keyed, {}, ada, f"{ROUTE}/batches") == (404, "not_found_error")
    assert error_of(keyed, {"system": "x" * 30_000}, ada) == (413, "request_too_large")
    assert error_of(keyed, {"n": 2}, ada) == (400, "invalid_request_error")
    keyed.state.tenants.of(b"Bearer key-of-ada").num_requests += 1  # type: ignore[union-attr]
    try:
        assert error_of(keyed, {}, ada) == (429, "rate_limit_error")
    finally:
        keyed.state.tenants.of(b"Bearer key-of-ada").num_requests -= 1  # type: ignore[union-attr]
    keyed.state.is_draining = True
    try:
        assert error_of(keyed, {}, ada) == (503, "overloaded_error")
    finally:
        keyed.state.is_draining = False


def test_an_error_within_a_stream_is_an_event(models: dict[str, ServedModel]) -> None:
    """Here the server ends before the answer."""
    body = {**ENDLESS, "model": "tiny", "messages": MESSAGES, "stream": True}
    with running(models, ServerConfig(stream_interval_ms=0)) as ending:
        request = urllib.request.Request(f"{ending.url}{ROUTE}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.readline() == b"event: message_start\n"
            wait_for(lambda: ending.state.answering)
            (answering,) = ending.state.answering
            answering.get_loop().call_soon_threadsafe(ending.state.end_answers)
            *_, event, data = answer.read().decode().strip().splitlines()
    error = json.loads(data.removeprefix("data: "))
    assert event == "event: error" and error["type"] == "error"
    assert error["error"]["type"] == "overloaded_error" and error["request_id"]


def test_models_have_both_forms(server: Running) -> None:
    status, listed = ask(f"{server.url}/v1/models", headers={"anthropic-version": "2023-06-01"})
    assert status == 200 and (listed["first_id"], listed["last_id"]) == ("tiny", "plain")
    assert listed["has_more"] is False and listed["object"] == "list"
    (tiny, _) = listed["data"]
    assert (tiny["type"], tiny["object"], tiny["display_name"]) == ("model", "model", "tiny")
    assert ask(f"{server.url}/v1/models/tiny")[1] == tiny
