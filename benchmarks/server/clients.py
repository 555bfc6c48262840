"""Clients of a server, on one event loop: those that read, that dawdle, that leave, and that send nonsense.

They are as cheap as they can be, since they share the machine with the server: a protocol each, which looks for a few
bytes. Readers keep their connection, as OpenAI's client does.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from server.prompts import Asked, body

PATIENCE_S = 120.0
NONSENSE: list[tuple[bytes, int]] = [
    (b"{", 400),
    (b'{"messages": []}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "guided_json": {"type": "objct"}}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "guided_regex": "(((("}', 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "model": "nope"}', 404),
    (b'{"messages": [{"role": "user", "content": "x"}], "guided_jsn": {}}', 400),
    (b'{"messages": [{"role": "user", "content": "' + b"x " * 20_000 + b'"}]}', 400),
    (b'{"messages": ' + b"[" * 50_000, 400),
    (b"x" * (5 << 20), 413),
]


@dataclass
class Counts:
    """What clients saw."""

    requests: int = 0
    tokens: int = 0
    events: int = 0
    left: int = 0
    refused: int = 0
    errors: list[str] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)


class Connection(asyncio.Protocol):
    """One connection: what came of the request that is under way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_open = True
        self._done: asyncio.Future[None] | None = None
        self._at_least, self._end = 0, b""
        self._restart()

    def ask(self, content: bytes, end: bytes, at_least: int = 0) -> asyncio.Future[None]:
        """Send a body; done when `end` came, or so many bytes, or nothing more will."""
        self._restart()
        self._end, self._at_least = end, at_least
        self._done = asyncio.get_running_loop().create_future()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: "
        assert self.transport is not None
        self.transport.write(head + str(len(content)).encode() + b"\r\n\r\n" + content)
        return self._done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.first_s = self.first_s or time.perf_counter() - self._began
        self.events += data.count(b"data: {")
        self.num_bytes += len(data)
        self.head = (self.head + data)[:2000] if len(self.head) < 2000 else self.head
        self.tail = data if len(data) > 2000 else (self.tail + data)[-2000:]
        if self.tail.endswith(self._end) or 0 < self._at_least <= self.num_bytes:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._finish()

    def _restart(self) -> None:
        self.head = self.tail = b""
        self.events = self.num_bytes = 0
        self.first_s, self._began = 0.0, time.perf_counter()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)


Ask = Callable[[Connection], Awaitable[bool]]
"""One request on a connection; whether the connection is of use afterwards."""


class Clients:
    """Clients that ask at random, by `seed`, and what they saw."""

    def __init__(self, port: int, asked: Sequence[Asked], seed: int = 0) -> None:
        self.counts = Counts()
        self._port, self._draw = port, random.Random(seed)
        self._asked = [json.dumps(body(one)).encode() for one in asked]

    async def run(
        self, seconds: float, readers: int, slow: int = 0, leaving: int = 0, hostile: int = 0
    ) -> None:
        """So many of each, all at once."""
        end = time.monotonic() + seconds
        kinds = [
            (readers, self._read),
            (slow, self._read_slowly),
            (leaving, self._leave),
            (hostile, self._offend),
        ]
        await asyncio.gather(*(self._loop(end, ask) for count, ask in kinds for _ in range(count)))

    async def _loop(self, end: float, ask: Ask) -> None:
        connection: Connection | None = None
        while time.monotonic() < end:
            try:
                if connection is None or not connection.is_open:
                    connection = await self._connected()
                if not await asyncio.wait_for(ask(connection), PATIENCE_S):
                    self._close(connection)
                    connection = None
            except Exception as error:
                self.counts.errors.append(f"{type(error).__name__}: {error}"[:300])
                connection = None
                await asyncio.sleep(0.2)
        if connection is not None:
            self._close(connection)

    async def _connected(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            Connection, "127.0.0.1", self._port
        )
        return connection

    def _close(self, connection: Connection) -> None:
        assert connection.transport is not None
        connection.transport.abort()

    async def _read(self, connection: Connection) -> bool:
        await connection.ask(self._draw.choice(self._asked), b"\r\n0\r\n\r\n")
        return self._noted(connection)

    def _noted(self, connection: Connection) -> bool:
        tail = connection.tail
        if b"[DONE]" not in tail or b'"error"' in tail:
            raise ValueError(f"ended early: {tail[-300:]!r}")
        usage = tail.rpartition(b'"completion_tokens":')[2]
        self.counts.tokens += int(usage.partition(b",")[0].partition(b"}")[0])
        self.counts.events += connection.events
        self.counts.requests += 1
        self.counts.first_s.append(connection.first_s)
        return True

    async def _read_slowly(self, connection: Connection) -> bool:
        done, transport = (
            connection.ask(self._draw.choice(self._asked), b"\r\n0\r\n\r\n"),
            connection.transport,
        )
        assert transport is not None
        while not done.done():
            transport.pause_reading()
            await asyncio.sleep(0.05)
            transport.resume_reading()
            await asyncio.wait({done}, timeout=0.005)
        return self._noted(connection)

    async def _leave(self, connection: Connection) -> bool:
        await connection.ask(self._draw.choice(self._asked), b"[DONE]\n\n", self._draw.choice((1, 300, 900)))
        self.counts.left += 1
        return False

    async def _offend(self, connection: Connection) -> bool:
        content, status = self._draw.choice(NONSENSE)
        await connection.ask(content, b"}", 1)
        said = connection.head.partition(b"\r\n")[0]
        if str(status).encode() not in said:
            raise ValueError(f"nonsense was answered with {said!r}, not {status}")
        self.counts.refused += 1
        await asyncio.sleep(0.2)
        return False
