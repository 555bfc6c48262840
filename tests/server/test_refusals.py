"""Each request that is refused is counted once, wherever that was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from support.server.asking import ENDLESS, MESSAGES, ask
from support.server.running import Running, running
from support.server.sockets import connected, raw, rest, wait_for
from weft.errors import ExecutorError
from weft.server.models import ServedModel
from weft.server.settings import ProgramSettings, ServerConfig

CHAT = "/v1/chat/completions"
KEY = {"Authorization": "Bearer a-key"}
Counts = dict[tuple[str, str], int]


@pytest.fixture(scope="module")
def keyed(models: dict[str, ServedModel]) -> Iterator[Running]:
    config = ServerConfig(
        api_keys={"ada": "a-key"},
        max_body_bytes=20_000,
        max_body_s=0.5,
        max_requests_per_key=1,
        max_connections=8,
        programs=ProgramSettings(max_module_bytes=40_000, max_bytes=50_000),
    )
    with running(models, config) as started:
        yield started


def grown(server: Running, before: Counts) -> Counts:
    """What was counted since."""
    now = server.state.metrics.refusals
    return {what: count - before.get(what, 0) for what, count in now.items() if count > before.get(what, 0)}


CASES: list[tuple[str, Any, tuple[str, str], int]] = [
    (CHAT, b"{", ("", "input"), 400),
    (CHAT, b"", ("", "input"), 400),
    (CHAT, {}, ("tiny", "input"), 400),
    (CHAT, {"messages": MESSAGES, "model": "plain", "nonsense": 1}, ("plain", "input"), 400),
    (CHAT, {"messages": MESSAGES, "model": "nope" * 100}, ("", "not_found"), 404),
    (CHAT, {"messages": MESSAGES, "model": [1]}, ("", "input"), 400),
    (CHAT, {"messages": MESSAGES, "model": "plain", "guided_regex": "[0-9"}, ("plain", "guide"), 400),
    ("/v1/completions", {"prompt": "a b " * 4000}, ("tiny", "capacity"), 400),
    ("/v1/responses", {"input": 5}, ("tiny", "input"), 400),
    ("/v1/messages", {"messages": MESSAGES, "model": "plain"}, ("plain", "input"), 400),
    ("/v1/completions", {"prompt": "x", "temperature": -1, "model": "plain"}, ("plain", "input"), 400),
    ("/tokenize", {"prompt": 5, "model": "plain"}, ("plain", "input"), 400),
    ("/v1/controllers", b"no module", ("", "input"), 400),
    ("/v1/controllers/tags", {"module_id": "x", "tags": []}, ("", "not_found"), 404),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 30_000}]}, ("", "too_large"), 413),
    ("/v1/nothing", None, ("", "not_found"), 404),
    (CHAT, None, ("", "method"), 405),
]


@pytest.mark.parametrize(("path", "data", "what", "status"), CASES, ids=range(len(CASES)))
def test_a_refused_request_is_counted_once(
    keyed: Running, path: str, data: Any, what: tuple[str, str], status: int
) -> None:
    before = dict(keyed.state.metrics.refusals)
    assert ask(f"{keyed.url}{path}", data, headers=KEY)[0] == status
    wait_for(lambda: not keyed.state.tenants.num_inside)
    assert grown(keyed, before) == {what: 1}


def test_who_is_not_let_in_is_counted_once(keyed: Running) -> None:
    before = dict(keyed.state.metrics.refusals)
    assert ask(f"{keyed.url}{CHAT}", {})[0] == 401
    with raw(keyed, ENDLESS, "a-key"):
        wait_for(lambda: keyed.state.tenants.num_requests)
        assert ask(f"{keyed.url}{CHAT}", {"messages": MESSAGES}, headers=KEY)[0] == 429
    wait_for(lambda: not keyed.state.tenants.num_requests)
    with connected(keyed) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer a-key\r\nContent-Length: 9\r\n\r\n"
        )
        assert b" 408 " in rest_of_head(connection.recv(65536))
    with connected(keyed) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 400")
    keyed.state.is_draining = True
    assert ask(f"{keyed.url}{CHAT}", {}, headers=KEY)[0] == 503
    keyed.state.is_draining = False
    wait_for(lambda: not keyed.state.tenants.num_inside)
    found = {
        ("", "key"): 1,
        ("", "too_many"): 1,  # before its body is read, which would name a model
        ("", "slow"): 1,
        ("", "head"): 1,
        ("", "unavailable"): 1,
    }
    assert grown(keyed, before) == found
    text = ask(f"{keyed.url}/metrics")[1]
    assert 'weft:refusals_total{engine="",model_name="",reason="key"}' in text


def rest_of_head(received: bytes) -> bytes:
    return received.partition(b"\r\n")[0]


def test_connections_are_bounded(models: dict[str, ServedModel]) -> None:
    with running(models, ServerConfig(max_connections=4)) as server, ExitStack() as held:
        for _ in range(4):
            held.enter_context(raw(server, ENDLESS))
        wait_for(lambda: server.state.tenants.num_requests == 4)
        before = dict(server.state.metrics.refusals)
        status, answer = ask(f"{server.url}/version")
        assert status == 503 and answer["error"]["code"] == "too_many_connections"
        assert ask(f"{server.url}/health")[0] == 200  # or a supervisor would start it anew
        assert grown(server, before) == {("", "unavailable"): 1}
        held.close()
        wait_for(lambda: not server.state.connections.open)
        assert ask(f"{server.url}/version")[0] == 200


def test_connections_without_requests_keep_nobody_out(keyed: Running) -> None:
    """The one that has waited longest is closed, whether it has never asked, or has been answered."""
    wait_for(lambda: not keyed.state.connections.open)
    answered = connected(keyed)
    answered.sendall(b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert answered.recv(100).startswith(b"HTTP/1.1 200")
    held = [answered, *(connected(keyed) for _ in range(7))]
    wait_for(lambda: len(keyed.state.connections.open) == 8)
    for one in held[:3]:
        with connected(keyed) as asking:
            asking.sendall(b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            assert rest(asking).startswith(b"HTTP/1.1 200")
        rest(one)
        held.append(connected(keyed))
        wait_for(lambda: len(keyed.state.connections.open) == 8)
    for one in held:
        one.close()
    wait_for(lambda: not keyed.state.connections.open and not keyed.state.connections.idle)


def test_modules_have_a_bound_of_their_own(keyed: Running) -> None:
    """A module may be longer than other bodies."""

    def module(size: int) -> bytes:
        head = b"\0asm\1\0\0\0"
        name = b"\x01x"
        length = size - len(head) - 1 - 3  # a custom section, its length in three bytes
        size_bytes = bytes((length & 127 | 128, length >> 7 & 127 | 128, length >> 14))
        return head + b"\0" + size_bytes + name + bytes(length - len(name))

    assert ask(f"{keyed.url}/v1/controllers", module(35_000), headers=KEY)[0] == 200
    status, answer = ask(f"{keyed.url}/v1/controllers", module(45_000), headers=KEY)
    assert status == 413 and answer["error"]["code"] == "body_too_large"
    status, answer = ask(f"{keyed.url}/v1/controllers", module(36_000), headers=KEY)
    assert status == 413 and answer["error"]["code"] == "too_many_programs"
    assert ask(f"{keyed.url}/v1/controllers/tags", b"x" * 35_000, headers=KEY)[0] == 413


def test_heads_of_what_can_be_watched(keyed: Running) -> None:
    for path in ("/", "/health", "/ready"):
        assert ask(f"{keyed.url}{path}", method="HEAD") == (200, "")


def test_health_tells_strangers_nothing_of_what_failed(
    keyed: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ExecutorError("line 7 of /a/secret/path")

    monkeypatch.setattr(keyed.state.models["plain"].client, "check", fail)
    for path in ("/health", "/ready"):
        assert ask(f"{keyed.url}{path}") == (503, {"status": "failed", "model": "plain"})
    assert "line 7 of /a/secret/path" in caplog.text
