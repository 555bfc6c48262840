"""Bodies that are made to hurt: each is refused soon, and the server answers others meanwhile and afterwards."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from support.server.asking import ANSWER, MESSAGES, PROMPT, SCHEMA, ask
from support.server.running import Running, running
from weft.cli.serve import _keys as keys_of
from weft.server.models import ServedModel
from weft.server.settings import ServerConfig

HALF = "\ud800"
CHAT, COMPLETIONS, RESPONSES = "v1/chat/completions", "v1/completions", "v1/responses"


def refused(server: Running, path: str, body: Any) -> str:
    """What the 4xx says."""
    status, answer = ask(f"{server.url}/{path}", body)
    assert 400 <= status < 500, (status, answer)
    return str(answer["error"]["message"])


def test_nothing_of_half_a_character(server: Running) -> None:
    """Wherever it stands it is refused, and the engine lives on."""
    bodies: list[tuple[str, Any]] = [
        (CHAT, {"messages": [{"role": "user", "content": HALF}]}),
        (CHAT, {"messages": MESSAGES, "cache_salt": HALF}),
        (CHAT, {"messages": MESSAGES, "stop": HALF}),
        (CHAT, {"messages": MESSAGES, "bad_words": [HALF]}),
        (CHAT, {"messages": MESSAGES, "guided_regex": HALF}),
        (CHAT, {"messages": MESSAGES, "user": HALF}),
        (CHAT, {"messages": MESSAGES, "model": HALF}),
        (COMPLETIONS, {"prompt": HALF}),
        (RESPONSES, {"input": PROMPT, "metadata": {"a": HALF}}),
        ("v1/messages", {"messages": MESSAGES, "max_tokens": 4, "system": HALF}),
        ("tokenize", {"prompt": HALF}),
    ]
    for path, body in bodies:
        assert "half a character" in refused(server, path, body)
    assert ask(f"{server.url}/health")[0] == 200


WRONG: list[tuple[str, Any]] = [
    (CHAT, {"messages": MESSAGES, "chat_template_kwargs": {"self": 5}}),
    (CHAT, {"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": ["a"]}}]}),
    (CHAT, {"messages": MESSAGES, "tools": [1]}),
    (
        CHAT,
        {
            "messages": MESSAGES,
            "tools": [{"type": "function", "function": {"name": "a", "parameters": SCHEMA}}],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": 5}},
        },
    ),
    (CHAT, {"messages": MESSAGES, "echo": True}),
    (RESPONSES, {"input": PROMPT, "text": {"verbosity": "loud"}}),
    (RESPONSES, {"input": PROMPT, "text": {"colour": "red"}}),
    (RESPONSES, {"input": PROMPT, "reasoning": {"summary": "detailed"}}),
    (RESPONSES, {"input": PROMPT, "metadata": {"a": "x" * 600}}),
    (CHAT, {"messages": MESSAGES, "stream": True, "stream_options": {"include_obfuscation": True}}),
    (COMPLETIONS, {"prompt": [[0] * 900] * 1000, "echo": True, "logprobs": 1, "max_tokens": 0}),
    (COMPLETIONS, {"prompt": ["x"] * 1025}),
    ("tokenize", {"prompt": "a" * 1_000_000}),
    ("detokenize", {"tokens": ["a"]}),
]


@pytest.mark.parametrize(("path", "body"), WRONG, ids=range(len(WRONG)))
def test_what_can_not_be_done_is_a_400(server: Running, path: str, body: Any) -> None:
    assert refused(server, path, body)


BOMBS: dict[str, tuple[str, str]] = {
    "prompt of objects": (COMPLETIONS, '{"prompt": [' + ",".join(["{}"] * 1_000_000) + "]}"),
    "stop of numbers": (CHAT, '{"messages": [], "stop": [' + ",".join(["1"] * 1_500_000) + "]}"),
    "messages of lists": (CHAT, '{"messages": [' + ",".join(["[]"] * 1_000_000) + "]}"),
    "bad words": (
        CHAT,
        '{"messages": [{"role": "user"}], "bad_words": [' + ",".join(["{}"] * 1_000_000) + "]}",
    ),
    "biases": (
        CHAT,
        '{"messages": [{}], "logit_bias": {' + ",".join(f'"x{i}": 1' for i in range(200_000)) + "}}",
    ),
    "unknown fields": (CHAT, "{" + ",".join(f'"x{i}": 1' for i in range(200_000)) + "}"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_large_body_does_not_stop_the_server(server: Running, name: str) -> None:
    """It is refused, and another route answers meanwhile."""
    path, body = BOMBS[name]
    waits: list[float] = []
    ended = threading.Event()

    def others() -> None:
        while not ended.is_set():
            began = time.monotonic()
            assert ask(f"{server.url}/version")[0] == 200
            waits.append(time.monotonic() - began)

    thread = threading.Thread(target=others)
    thread.start()
    began = time.monotonic()
    assert refused(server, path, body.encode())
    taken = time.monotonic() - began
    ended.set()
    thread.join()
    assert taken < 60 and max(waits) < max(5, taken / 2), (taken, waits)


def test_arguments_that_nest_are_read_as_text(server: Running) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 100_000}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, *MESSAGES]
    status, _ = ask(f"{server.url}/{CHAT}", {"messages": messages, "max_tokens": 2})
    assert status == 200


# -- tenants


def test_tenants_find_their_own_prefixes_alone_and_go_before_nobody(models: dict[str, ServedModel]) -> None:
    long = {
        "messages": [{"role": "user", "content": "Text: " + "Something that is long. " * 12}],
        "max_tokens": 2,
    }
    config = ServerConfig(api_keys={"ada": "key-of-ada", "bo": "key-of-bo"}, max_answers_per_key=8)

    def cached(started: Running, key: str) -> int:
        status, answer = ask(f"{started.url}/{CHAT}", long, headers={"Authorization": f"Bearer {key}"})
        assert status == 200
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    with running(models, config) as started:
        assert [cached(started, key) > 16 for key in ("key-of-ada", "key-of-bo", "key-of-ada", "key-of-bo")] == [
            False, False, True, True,
        ]  # fmt: skip
        headers = {"Authorization": "Bearer key-of-ada"}
        status, answer = ask(f"{started.url}/{CHAT}", {**long, "priority": -5}, headers=headers)
        assert status == 400 and answer["error"]["param"] == "priority"


def test_keys_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The padding of a key in base64 is no name; the environment's key is one more."""
    monkeypatch.delenv("WEFT_API_KEY", raising=False)
    assert keys_of(["ada=one", "dHdv==", "c2VjcmV0="]) == {
        "ada": "one",
        "key-2": "dHdv==",
        "key-3": "c2VjcmV0=",
    }
    monkeypatch.setenv("WEFT_API_KEY", "c2VjcmV0LXNlY3JldA==")
    assert keys_of(None) == {"environment": "c2VjcmV0LXNlY3JldA=="}


def test_the_loop_that_ended_is_let_go() -> None:
    import asyncio
    import gc
    import weakref

    from weft.client.following import Wakes

    loops = []
    for _ in range(3):
        loop = asyncio.new_event_loop()

        async def use() -> None:
            Wakes.of_running_loop()

        loop.run_until_complete(use())
        loop.close()
        loops.append(weakref.ref(loop))
        del loop
    gc.collect()
    assert [one() for one in loops] == [None] * 3


def test_all_is_well_afterwards(server: Running) -> None:
    status, answer = ask(f"{server.url}/{CHAT}", {"messages": MESSAGES, "temperature": 0, "max_tokens": 40})
    assert status == 200 and json.loads(answer["choices"][0]["message"]["content"]) == ANSWER
