"""What would hold the event loop is done beside it, and reading and writing do not wait for each other."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.server.asking import ENDLESS, MESSAGES, ask
from support.server.running import Running, running
from support.server.sockets import connected, wait_for
from weft.client.client import EngineClient
from weft.server import state
from weft.server.models import ServedModel
from weft.server.run import keep_heap
from weft.server.settings import ServerConfig
from weft.server.workers import READERS, WRITERS, Turns

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
        assert waiting.result(60)[0] == 200


def test_bodies_are_read_while_answers_wait(server: Running) -> None:
    free = hold(server.state.workers.writing, WRITERS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, f"{server.url}/v1/chat/completions", SMALL)
        status, answer = ask(f"{server.url}/tokenize", {"prompt": "a " * 3000})
        assert status == 200 and answer["count"] > 1000 and not waiting.done()
        free.set()
        assert waiting.result(60)[0] == 200


@pytest.mark.parametrize(("body", "is_beside"), [(SMALL, False), (LARGE, True)])
def test_large_bodies_are_parsed_beside_the_loop(
    server: Running, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], is_beside: bool
) -> None:
    threads, parse = list[str](), state.read_json

    def noted(raw: bytes, most_entries: int) -> Any:
        threads.append(threading.current_thread().name)
        return parse(raw, most_entries)

    monkeypatch.setattr(state, "read_json", noted)
    assert ask(f"{server.url}/v1/chat/completions", body)[0] == 200
    assert [name.startswith("weft-reading") for name in threads] == [is_beside]


MANY: dict[str, Any] = {"prompt": ["Text:"] * 100, "model": "plain", "max_tokens": 2}


class Submitting:
    """A client that waits for `may_go` within `submit`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, client: EngineClient) -> None:
        self.begun, self.may_go, self.done = threading.Event(), threading.Event(), threading.Event()
        submit = client.submit

        def slow(*arguments: Any) -> Any:
            self.begun.set()
            assert self.may_go.wait(60)
            try:
                return submit(*arguments)
            finally:
                self.done.set()

        monkeypatch.setattr(client, "submit", slow)


def test_many_sequences_are_submitted_beside_the_loop(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitting = Submitting(monkeypatch, server.state.models["plain"].client)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, f"{server.url}/v1/completions", MANY)
        assert submitting.begun.wait(60)
        assert ask(f"{server.url}/version")[0] == 200
        submitting.may_go.set()
        status, answer = waiting.result(60)
    assert status == 200 and len(answer["choices"]) == 100


def test_who_leaves_while_they_are_submitted_leaves_nothing(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.state.models["plain"].client
    submitting = Submitting(monkeypatch, client)
    body = json.dumps({**MANY, **ENDLESS}).encode()
    with connected(server) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert submitting.begun.wait(60)
    wait_for(lambda: not server.state.tenants.num_requests)
    submitting.may_go.set()
    assert submitting.done.wait(60)
    wait_for(lambda: client.is_idle and client.responses.is_empty)


def test_a_full_engine_says_so(server: Running) -> None:
    status, answer = ask(f"{server.url}/v1/completions", {**MANY, "n": 20, "temperature": 1.0})
    assert status == 503 and answer["error"]["code"] == "engine_full"


def test_tenants_take_turns_on_the_reading_threads() -> None:
    """Who asks for much waits for itself: of two others' works each comes before the rest of it."""
    order = list[str]()

    async def run() -> None:
        with ThreadPoolExecutor(1) as pool:
            turns, free = Turns(pool, 1), threading.Event()
            held = asyncio.ensure_future(turns.run(0, lambda: free.wait(60)))
            much = [asyncio.ensure_future(turns.run(1, lambda: order.append("much"))) for _ in range(5)]
            left = asyncio.ensure_future(turns.run(1, lambda: order.append("left")))
            few = [asyncio.ensure_future(turns.run(2, lambda: order.append("few"))) for _ in range(2)]
            await asyncio.sleep(0)
            left.cancel()
            free.set()
            await asyncio.gather(held, *much, *few)
            assert await turns.run(3, lambda: "done") == "done"

    asyncio.run(run())
    assert order == ["much", "few", "much", "few", "much", "much", "much"]


def test_bodies_that_are_not_whole_count(models: dict[str, ServedModel]) -> None:
    """They count from their headers on, apart from what is under way, and what came of them takes room."""
    config = ServerConfig(api_keys={"ada": "a", "bo": "b"}, max_requests_per_key=2, max_bodies_bytes=50_000)
    with running(models, config) as server:
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer a\r\n"
        head += "Content-Length: 90000\r\n\r\n"
        with connected(server) as one, connected(server) as other:
            for connection in (one, other):
                connection.sendall(head.encode() + b"x" * 20_000)
            wait_for(lambda: server.state.tenants.num_body_bytes == 40_000)
            ask_as = {key: {"Authorization": f"Bearer {key}"} for key in "ab"}
            assert ask(f"{server.url}/tokenize", {"prompt": "x"}, headers=ask_as["a"])[0] == 429
            assert ask(f"{server.url}/tokenize", {"prompt": "x"}, headers=ask_as["b"])[0] == 200
            status, answer = ask(f"{server.url}/tokenize", {"prompt": "x" * 15_000}, headers=ask_as["b"])
            assert status == 503 and answer["error"]["code"] == "bodies_full"
        wait_for(lambda: not server.state.tenants.num_arriving)
        assert server.state.tenants.num_body_bytes == 0


def test_who_has_no_key_sees_so_though_the_body_is_long(models: dict[str, ServedModel]) -> None:
    with running(models, ServerConfig(api_keys={"ada": "a"})) as server:
        for _ in range(5):
            status, answer = ask(f"{server.url}/v1/completions", {"prompt": "x" * 3_000_000})
            assert status == 401 and answer["error"]["code"] == "invalid_api_key"


def test_what_lives_as_long_as_the_server_is_not_looked_through() -> None:
    before = gc.get_threshold(), gc.get_freeze_count()
    kept = [[] for _ in range(1000)]  # type: list[list[int]]
    try:
        keep_heap()
        assert gc.get_freeze_count() >= before[1] + len(kept)
    finally:
        gc.unfreeze()
        gc.set_threshold(*before[0])
