"""What would hold the event loop is done beside it, and reading and writing do not wait for each other."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.server.asking import ENDLESS, MESSAGES, ask
from support.server.running import Running
from support.server.sockets import connected, wait_for
from weft.client.client import EngineClient
from weft.server.routes import bodies
from weft.server.workers import READERS, WRITERS

SMALL = {"messages": MESSAGES, "max_tokens": 2}
LARGE = {**SMALL, "user": "x" * 100_000}


def hold(pool: ThreadPoolExecutor, count: int) -> threading.Event:
    """Keep all threads of a pool busy until the event is set."""
    free = threading.Event()
    for _ in range(count):
        pool.submit(free.wait, 30)
    return free


def test_answers_are_written_while_bodies_wait(server: Running) -> None:
    free = hold(server.state.workers.reading, READERS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, f"{server.url}/v1/chat/completions", LARGE)
        assert ask(f"{server.url}/v1/chat/completions", SMALL)[0] == 200
        assert not waiting.done()
        free.set()
        assert waiting.result(30)[0] == 200


def test_bodies_are_read_while_answers_wait(server: Running) -> None:
    free = hold(server.state.workers.writing, WRITERS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, f"{server.url}/v1/chat/completions", SMALL)
        status, answer = ask(f"{server.url}/tokenize", {"prompt": "a " * 3000})
        assert status == 200 and answer["count"] > 1000 and not waiting.done()
        free.set()
        assert waiting.result(30)[0] == 200


@pytest.mark.parametrize(("body", "is_beside"), [(SMALL, False), (LARGE, True)])
def test_large_bodies_are_parsed_beside_the_loop(
    server: Running, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], is_beside: bool
) -> None:
    threads, parse = list[str](), bodies._data

    def noted(raw: bytes) -> Any:
        threads.append(threading.current_thread().name)
        return parse(raw)

    monkeypatch.setattr(bodies, "_data", noted)
    assert ask(f"{server.url}/v1/chat/completions", body)[0] == 200
    assert [name.startswith("weft-reading") for name in threads] == [is_beside]


MANY: dict[str, Any] = {"prompt": ["Text:"] * 100, "model": "plain", "max_tokens": 2}


def slowly_submitting(monkeypatch: pytest.MonkeyPatch, client: EngineClient) -> threading.Event:
    """Set when somebody submits, which takes a second."""
    submit, begun = client.submit, threading.Event()

    def slow(*arguments: Any) -> Any:
        begun.set()
        time.sleep(1)
        return submit(*arguments)

    monkeypatch.setattr(client, "submit", slow)
    return begun


def test_many_sequences_are_submitted_beside_the_loop(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = slowly_submitting(monkeypatch, server.state.models["plain"].client)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, f"{server.url}/v1/completions", MANY)
        assert begun.wait(10)
        began = time.monotonic()
        assert ask(f"{server.url}/version")[0] == 200 and time.monotonic() - began < 0.7
        status, answer = waiting.result(60)
    assert status == 200 and len(answer["choices"]) == 100


def test_who_leaves_while_they_are_submitted_leaves_nothing(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.state.models["plain"].client
    begun = slowly_submitting(monkeypatch, client)
    body = json.dumps({**MANY, **ENDLESS}).encode()
    with connected(server) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert begun.wait(10)
    wait_for(lambda: not server.state.tenants.num_requests)
    time.sleep(1.1)
    wait_for(lambda: client.is_idle and client.responses.is_empty)


def test_a_full_engine_says_so(server: Running) -> None:
    status, answer = ask(f"{server.url}/v1/completions", {**MANY, "n": 20, "temperature": 1.0})
    assert status == 503 and answer["error"]["code"] == "engine_full"
