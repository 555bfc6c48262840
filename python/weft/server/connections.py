"""Adds limits to uvicorn's connections that uvicorn itself lacks. They guard against:

- a head (request line and headers) that is too long or arrives too slowly;
- clients that do not read their answers, which the server would have to buffer;
- clients that pipeline requests without end, or disconnect while several pipelined requests wait;
- too many open connections;
- request smuggling, where a proxy might see other request boundaries: other HTTP versions, and bodies after an
  upgrade.
"""

from __future__ import annotations

import asyncio
import http
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

_log = logging.getLogger("weft.server")

MAX_GATHERED = 4096
"""Writes above this many bytes go to the socket immediately. Smaller ones are batched until the event loop's next
iteration."""
VERSIONS = ("1.0", "1.1")
BODY_HEADERS = (b"content-length", b"transfer-encoding")
LINGER_S = 1.0
"""If an answer is sent before the whole request has arrived, the server keeps reading and dropping input for this many
seconds. Closing a socket with unread input makes the kernel send a reset, and the client may then lose the answer."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits for connections.

    A request's head (request line and headers) may have `max_head_bytes` and take `max_head_s` seconds. A client that
    reads nothing of a pending answer for `slow_reader_s` seconds is disconnected. While it waits for an answer, a
    client may pipeline `max_pipelined_bytes` of further requests. Above `max_connections`, each new connection closes
    the one that has been idle longest."""

    max_head_bytes: int
    max_head_s: float
    slow_reader_s: float
    max_pipelined_bytes: int
    max_connections: int


class Connections:
    """The open connections of a server. Used only on the event loop.

    `refused` is called for each request that this module refuses because of its head or framing. `closed` is called
    with each connection that has closed.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        refused: Callable[[], object],
        closed: Callable[[Connection], object],
    ) -> None:
        self.limits, self.refused, self.closed = limits, refused, closed
        self.open: set[Connection] = set()
        self.idle: dict[Connection, None] = {}
        """Connections without a request in flight, longest idle first. A dict serves as an ordered set."""
        self._interval = min(limits.max_head_s / 4, limits.slow_reader_s / 4, 1.0)
        # The time of the last check of all connections: on the monotonic clock, and on the clock of `now`.
        self._last_look: tuple[float, float] | None = None

    def protocol(self) -> type[Connection]:
        """Return the protocol class for uvicorn's `http` setting. Its instances register themselves here."""
        return type("Connection", (Connection,), {"all": self})

    def make_room(self) -> None:
        """Close the connection that has been idle longest if too many are open."""
        if len(self.open) > self.limits.max_connections and self.idle:
            oldest = next(iter(self.idle))
            del self.idle[oldest]
            oldest.transport.abort()

    def now(self) -> float:
        """Return the time in seconds on a clock that stops while the event loop is blocked, for example in a suspended
        process. Input that arrived in that time is still unread, and its client must not count as late."""
        if self._last_look is None:
            return time.monotonic()
        # `watch` runs every `_interval` seconds. A longer gap means that the loop was blocked, and does not count.
        looked_at, now_then = self._last_look
        return now_then + min(time.monotonic() - looked_at, 2 * self._interval)

    async def watch(self) -> None:
        """Periodically check all connections for slow clients, until cancelled."""
        try:
            while True:
                now = self.now()
                self._last_look = time.monotonic(), now
                for connection in list(self.open):
                    connection.check(now)
                await asyncio.sleep(self._interval)
        finally:
            self._last_look = None

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        """Like `asyncio.timeout`, but on the clock of `now`."""
        loop = asyncio.get_running_loop()
        began = self.now()

        def check() -> None:
            left = began + seconds - self.now()
            if left > 0:
                due.append(loop.call_later(left, check))
            else:
                limit.reschedule(loop.time())

        async with asyncio.timeout(None) as limit:
            due = [loop.call_later(seconds, check)]
            try:
                yield
            finally:
                due[-1].cancel()


class Connection(HttpToolsProtocol):
    """A uvicorn connection with limits. Most methods override callbacks of uvicorn's HTTP parser."""

    all: ClassVar[Connections]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cycles: list[RequestResponseCycle] = []
        self._is_in_head, self._is_too_long, self._is_upgrade, self._is_refused = False, False, False, False
        self._num_head, self._num_pipelined, self._num_dropped = 0, 0, 0
        self._head_since: float | None = None
        self._num_taken, self._taken_at = 0, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection, and start the time limit for its first head."""
        self._counting = CountingTransport(cast("asyncio.Transport", transport), self._may_be_sending)
        super().connection_made(cast("asyncio.Transport", self._counting))
        self._head_since = self._taken_at = self.all.now()
        self.all.open.add(self)
        self.all.make_room()
        self.all.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Mark all requests of the closed connection as disconnected. uvicorn marks only the latest one."""
        self.all.open.discard(self)
        self.all.idle.pop(self, None)
        self.all.closed(self)
        self.pipeline.clear()
        for cycle in self._under_way:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse input, and enforce the limits for heads and pipelined input."""
        if self.transport.is_closing():
            self._num_dropped += len(data)
            if self._num_dropped > self.all.limits.max_pipelined_bytes:
                self.transport.abort()
            return
        was_in_head = self._is_in_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head and was_in_head:
            # The parser reports a header only when it is complete, so bytes are counted as they arrive.
            self._num_head += len(data)
            if self._num_head > self.all.limits.max_head_bytes:
                self._is_too_long = True
                self.send_400_response("")
                return
        if self.pipeline:
            self._read_pipelined(len(data))
        elif not self._under_way and self._head_since is None:
            self._head_since = self.all.now()

    def on_message_begin(self) -> None:
        """Start counting the bytes of a new head."""
        self._is_in_head, self._num_head = True, 0
        super().on_message_begin()
        self.scope["weft.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        """Check a complete head, then let uvicorn start the request."""
        size = len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
        if size > self.all.limits.max_head_bytes:
            self._is_too_long = True
            raise ValueError(
                "the head is too long"
            )  # httptools turns it into a parser error, which uvicorn answers
        if self.parser.get_http_version() not in VERSIONS:
            raise ValueError("another version")
        if self.parser.should_upgrade() and any(name in BODY_HEADERS for name, _ in self.headers):
            self._is_upgrade = True  # the parser would treat the body as data of the other protocol
            raise ValueError("a body after an upgrade")
        super().on_headers_complete()
        self._is_in_head, self._head_since = False, None
        self.all.idle.pop(self, None)
        self._cycles = [*self._under_way, self.cycle]

    def on_response_complete(self) -> None:
        """Mark the connection as idle if no answer is pending."""
        if not self._under_way:
            self.all.idle[self] = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a head or body framing that the parser rejects."""
        limit = self.all.limits.max_head_bytes
        if self._is_too_long:
            self._refuse(431, f"the request line and headers have more than {limit} bytes")
        elif self._is_upgrade:
            self._refuse(400, "no other protocol is spoken here; send the body without the header Upgrade")
        else:
            self._refuse(400, "this is no HTTP/1.1 request")

    def check(self, now: float) -> None:
        """Disconnect a client that sends its head too slowly or does not read its answer."""
        limits = self.all.limits
        is_late = self._head_since is not None and now - self._head_since > limits.max_head_s
        if is_late and not self.transport.is_closing():
            self._head_since = None
            if self._is_in_head:
                self._refuse(408, f"the headers did not come within {limits.max_head_s:g} s")
            else:
                self.transport.close()
        taken, is_all = self._counting.taken
        if is_all or taken != self._num_taken:
            self._num_taken, self._taken_at = taken, now
        elif now - self._taken_at > limits.slow_reader_s:
            _log.warning("a client has read nothing for %g s: its connection is cut", limits.slow_reader_s)
            self.transport.abort()

    @property
    def _under_way(self) -> list[RequestResponseCycle]:
        """Requests whose answer is not complete."""
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    def _read_pipelined(self, size: int) -> None:
        """Keep reading pipelined input up to a limit. uvicorn would stop reading, and would not notice when the client
        disconnects."""
        self._num_pipelined = self._num_pipelined + size if len(self._under_way) > 1 else 0
        if self._num_pipelined > self.all.limits.max_pipelined_bytes:
            _log.warning("a client sends requests and does not wait for answers: its connection is cut")
            self.transport.abort()
        else:
            self.flow.resume_reading()

    def _may_be_sending(self) -> bool:
        """Return whether the client may still be sending when the server closes the connection."""
        return self._is_refused or (self.cycle is not None and self.cycle.more_body)

    def _refuse(self, status: int, message: str) -> None:
        self.all.refused()
        for cycle in self._under_way:
            if cycle is not self.cycle or cycle.response_started or not cycle.more_body:
                self.transport.abort()  # the client would read the refusal as part of an earlier answer
                return
            cycle.disconnected = True  # the refusal takes the place of its answer
            cycle.message_event.set()
        self._is_refused = True
        kind = "invalid_request_error"
        body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": None}})
        lines = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            "connection: close",
        )
        self.transport.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
        self.transport.close()


class CountingTransport:
    """A transport wrapper that counts bytes and batches the writes of one event loop iteration.

    A system call costs as much as building an event. With batching, the response head and the first part of the body
    take one call. At the close, `may_be_sending()` tells whether the client may still be sending.
    """

    def __init__(self, transport: asyncio.Transport, may_be_sending: Callable[[], bool]) -> None:
        self._transport, self._num_bytes = transport, 0
        self._gathered: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._may_be_sending, self._is_over = may_be_sending, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._is_over:
            return
        self._gathered.append(data)
        if len(data) > MAX_GATHERED:
            self._write_gathered()  # flow control must notice a slow reader before more is written
        elif len(self._gathered) == 1:
            self._loop.call_soon(self._write_gathered)

    def is_closing(self) -> bool:
        return self._is_over or self._transport.is_closing()

    def close(self) -> None:
        self._write_gathered()
        if self.is_closing() or not self._may_be_sending():
            self._transport.close()
            return
        # Send EOF but keep reading for a while, so that the kernel sends no reset before the answer (`LINGER_S`).
        self._is_over = True
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._transport.close)

    def _write_gathered(self) -> None:
        data, self._gathered = b"".join(self._gathered), []
        if data and not self._transport.is_closing():
            self._num_bytes += len(data)
            self._transport.write(data)

    @property
    def taken(self) -> tuple[int, bool]:
        """Return how many bytes the kernel has accepted, and whether these are all bytes written so far."""
        left = self._transport.get_write_buffer_size()
        return self._num_bytes - left, not left
