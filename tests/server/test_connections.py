"""Connections of clients that do not read, do not end their heads, or send ahead and leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from support.pausing import pause_here
from support.server.asking import ENDLESS, ask
from support.server.running import Running, running
from support.server.sockets import chat, connected, rest, wait_for
from weft.errors import InputError
from weft.server.connections import MAX_GATHERED, CountingTransport
from weft.server.models import ServedModel
from weft.server.settings import ServerConfig


@pytest.fixture(scope="module")
def strict(models: dict[str, ServedModel]) -> Iterator[Running]:
    config = ServerConfig(slow_reader_s=2.0, max_head_s=1.0, max_head_bytes=8_000, max_body_bytes=300_000)
    with running(models, config) as started:
        yield started


MUCH = {**ENDLESS, "n": 8, "logprobs": True, "top_logprobs": 20, "max_drafts": 0}
"""An answer of more than a connection holds."""


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_who_reads_nothing_loses_its_connection(strict: Running, stream: bool) -> None:
    """Its socket is full, its deltas are merged, and after a while nothing of it is left."""
    with connected(strict, receive_bytes=4096) as connection:
        connection.sendall(chat({**MUCH, "stream": stream}))
        wait_for(lambda: strict.state.tenants.num_requests == 1)
        wait_for(lambda: not strict.state.connections.open, 120)
        wait_for(lambda: not strict.state.tenants.num_requests)
        received = rest(connection)
    assert b"200 OK" in received and b"[DONE]" not in received and b'"usage"' not in received
    assert strict.state.models["tiny"].client.responses.is_empty


@pytest.mark.slow
def test_who_reads_slowly_gets_all(models: dict[str, ServedModel]) -> None:
    """The whole answer takes longer than the limit, but no pause does."""
    limit_s = 10.0
    with (
        running(models, ServerConfig(slow_reader_s=limit_s)) as started,
        connected(started, receive_bytes=4096) as connection,
    ):
        connection.sendall(chat({**MUCH, "n": 4}))
        head, _, received = connection.recv(65536).partition(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].split()[0])
        began = time.monotonic()
        while len(received) < length:
            received += connection.recv(65536)
            ahead_s = 1.2 * limit_s * len(received) / length - (time.monotonic() - began)
            time.sleep(max(0.0, ahead_s))
    assert length > 3_000_000 and b'"usage"' in received and time.monotonic() - began > limit_s


@pytest.mark.parametrize("start", [b"", b"\r\n", b"GET /health HTTP/1.1\r\n", b"GET /health HTTP/1.1\r\nA: "])
def test_a_head_that_does_not_end_is_refused(strict: Running, start: bytes) -> None:
    """However often a little more of it comes."""
    before = time.monotonic()
    with connected(strict) as connection:
        connection.sendall(start)
        for _ in range(5):
            time.sleep(0.02)
            if start:
                connection.sendall(b"\r\n" if start == b"\r\n" else b"x")
        received = rest(connection)
    assert time.monotonic() - before > 0.9
    assert received.startswith(b"HTTP/1.1 408") == start.startswith(b"GET")
    assert not received or start.startswith(b"GET")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_pause_of_the_server_makes_nobody_slow(models: dict[str, ServedModel], part: str) -> None:
    """The rest comes after three seconds in which the process was stopped; two are allowed."""
    request = chat({"max_tokens": 2})
    end = request.index(b"\r\n\r\n") + 4
    first = end - 6 if part == "head" else end + 5
    config = ServerConfig(max_head_s=2.0, max_body_s=2.0)
    with running(models, config) as started, connected(started) as connection:
        connection.sendall(request[:first])
        time.sleep(0.2)
        pause_here(3.0)
        time.sleep(0.1)
        connection.sendall(request[first:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def test_the_head_of_a_second_request_is_bounded_too(strict: Running) -> None:
    with connected(strict) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)
        connection.sendall(b"GET /version HTTP/1.1\r\nHost:")
        assert rest(connection).startswith(b"HTTP/1.1 408")


LONG = {
    "a header": b"GET /health HTTP/1.1\r\nA: " + b"x" * 9_000 + b"\r\n\r\n",
    "headers": b"GET /health HTTP/1.1\r\n" + b"A: x\r\n" * 5_000 + b"\r\n",
    "a path": b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\n\r\n",
    "a header without an end": b"GET /health HTTP/1.1\r\nA: " + b"x" * 3_000_000,
}


@pytest.mark.parametrize("name", LONG)
def test_a_long_head_is_refused(strict: Running, name: str) -> None:
    with connected(strict) as connection:
        try:
            connection.sendall(LONG[name])
        except (BrokenPipeError, ConnectionResetError):
            assert name == "a header without an end"
        received = rest(connection)
    assert received.startswith(b"HTTP/1.1 431") or name == "a header without an end"
    wait_for(lambda: not strict.state.connections.open)
    assert ask(f"{strict.url}/health")[0] == 200


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "ahead", [b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", chat({"user": "x" * 200_000})]
)
def test_who_sends_ahead_and_leaves_is_cancelled(strict: Running, stream: bool, ahead: bytes) -> None:
    served, state = strict.state.models["tiny"], strict.state
    left = state.metrics.of("tiny").counters["weft:left_requests"]
    with connected(strict) as connection:
        connection.sendall(chat({**ENDLESS, "stream": stream, "max_drafts": 0}))
        wait_for(lambda: served.client.engine.running)
        connection.sendall(ahead)
        time.sleep(0.1)
    wait_for(lambda: not state.tenants.num_requests)
    assert state.metrics.of("tiny").counters["weft:left_requests"] == left + 1


def test_requests_that_are_sent_ahead_are_answered_in_turn(strict: Running) -> None:
    with connected(strict) as connection:
        one = chat({"max_tokens": 20, "ignore_eos": True, "user": "x" * 100_000})
        last = b"GET /version HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        connection.sendall(one * 2 + last)
        received = rest(connection)
    assert received.count(b"HTTP/1.1 200 OK") == 3 and received.endswith(b'"}')


def test_what_is_sent_ahead_is_bounded(strict: Running) -> None:
    with connected(strict) as connection:
        connection.sendall(chat(ENDLESS))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(chat({"user": "x" * 100_000}) * 200)
    wait_for(lambda: not strict.state.tenants.num_requests)


def test_a_head_that_can_not_be_read_is_a_400(strict: Running) -> None:
    with connected(strict) as connection:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert rest(connection).startswith(b"HTTP/1.1 400")


def test_bounds_that_can_not_be() -> None:
    for wrong in ({"max_head_bytes": 0}, {"max_head_s": 0.0}):
        with pytest.raises(InputError, match="max_head"):
            ServerConfig(**wrong)  # type: ignore[arg-type]


class Written:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.parts.append(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0


def test_what_one_turn_writes_is_one_call_of_the_system() -> None:
    """But for large parts, after which a slow reader is seen; and nothing is lost when it closes."""

    async def run() -> list[bytes]:
        written = Written()
        counted = CountingTransport(cast(Any, written), lambda: False)
        counted.write(b"head ")
        counted.write(b"first")
        assert not written.parts and counted.taken == (0, True)
        await asyncio.sleep(0)
        counted.write(b"a ")
        counted.write(b"b" * MAX_GATHERED + b"c")
        assert written.parts[1:] == [b"a " + b"b" * MAX_GATHERED + b"c"]
        counted.write(b"last")
        counted.close()
        counted.write(b"too late")
        await asyncio.sleep(0)
        assert counted.taken == (sum(map(len, written.parts)), True)
        return written.parts

    parts = asyncio.run(run())
    assert parts[0] == b"head first" and parts[-1] == b"last"
