"""Clients of a server on one event loop. Some read, some read slowly, some stall, some disconnect, and some are
hostile.

They share the machine with the server, so they must be cheap: each is a protocol that searches for a few bytes.
Readers keep their connections open, as OpenAI's client does.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from server import hostile
from server.connection import SMALL, Connection, connected
from server.prompts import Asked, body

PATIENCE_S = 120.0


@dataclass
class Counts:
    """The counts of all clients."""

    requests: int = 0
    tokens: int = 0
    events: int = 0
    left: int = 0
    stalled: int = 0
    given_up: int = 0
    refused: int = 0
    errors: list[str] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)


Ask = Callable[[Connection], Awaitable[bool]]
"""Sends a request on a connection. Returns whether the connection can be used again."""


class Clients:
    """Clients that send random requests, determined by `seed`, and their counts."""

    def __init__(self, port: int, asked: Sequence[Asked], seed: int = 0) -> None:
        self.counts = Counts()
        self._port, self._draw = port, random.Random(seed)
        self._asked = [json.dumps(body(one)).encode() for one in asked]

    async def run(
        self,
        seconds: float,
        readers: int,
        slow: int = 0,
        stalling: int = 0,
        leaving: int = 0,
        hostile: int = 0,
    ) -> None:
        """Run clients concurrently for `seconds`, with this number of each kind."""
        end = time.monotonic() + seconds
        kinds = [
            (readers, self._read),
            (slow, self._read_slowly),
            (leaving, self._leave),
            (stalling, self._stall),
            (hostile, self._offend),
        ]
        await asyncio.gather(*(self._loop(end, ask) for count, ask in kinds for _ in range(count)))

    async def _loop(self, end: float, ask: Ask) -> None:
        connection: Connection | None = None
        while time.monotonic() < end:
            try:
                if connection is None or not connection.is_open:
                    connection = await connected(self._port, SMALL if ask == self._stall else None)
                if not await asyncio.wait_for(ask(connection), PATIENCE_S):
                    self._close(connection)
                    connection = None
            except Exception as error:
                self.counts.errors.append(f"{type(error).__name__}: {error}"[:300])
                connection = None
                await asyncio.sleep(0.2)
        if connection is not None:
            self._close(connection)

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
        kind = self._draw.choice((hostile.nonsense, hostile.nonsense, hostile.dribble, hostile.unread))
        await kind(connection, self._draw)
        self.counts.refused += kind is hostile.nonsense
        self.counts.left += kind is not hostile.nonsense
        await asyncio.sleep(0.2)
        return False

    async def _stall(self, connection: Connection) -> bool:
        self.counts.stalled += 1
        self.counts.given_up += await hostile.stall(connection)
        return False
