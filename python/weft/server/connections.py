"""Connections: uvicorn's, by httptools, with what uvicorn does not bound: heads, readers, and who leaves while more of
its requests wait."""

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

MOST_WAITING = 4096
"""Larger parts are written at once."""
VERSIONS = ("1.0", "1.1")
OF_A_BODY = (b"content-length", b"transfer-encoding")
LINGER_S = 1.0
"""So long what a client still sends is read and dropped after an answer that did not wait for it: to who closes upon
unread bytes the system adds a reset, which may overtake the answer."""


@dataclass(frozen=True)
class ConnectionLimits:
    """What a connection may do.

    The head of a request (its line and its headers) has `max_head_bytes`, and comes within `max_head_s` seconds. A
    client that takes nothing of what is written for `slow_reader_s` is given up. While it is answered it may send
    `max_ahead_bytes` of further requests. Beyond `max_connections` each new one closes that which has waited longest
    for a request.
    """

    max_head_bytes: int
    max_head_s: float
    slow_reader_s: float
    max_ahead_bytes: int
    max_connections: int


class Connections:
    """The open connections of a server. `refused` is called for each request that is refused here, before it is whole,
    and `closed` with each connection that has closed. Used on the event loop alone."""

    def __init__(
        self,
        limits: ConnectionLimits,
        refused: Callable[[], object],
        closed: Callable[[Connection], object],
    ) -> None:
        self.limits, self.refused, self.closed = limits, refused, closed
        self.open: set[Connection] = set()
        self.idle: dict[Connection, None] = {}
        """Those without a request, who has waited longest first."""
        self._interval = min(limits.max_head_s / 4, limits.slow_reader_s / 4, 1.0)
        self._looked: tuple[float, float] | None = None  # at the system's clock, and at `now`

    def protocol(self) -> type[Connection]:
        """The class of these connections, for uvicorn's `http`."""
        return type("Connection", (Connection,), {"all": self})

    def make_room(self) -> None:
        """Close the one that has waited longest for a request, where too many are open."""
        if len(self.open) > self.limits.max_connections and self.idle:
            first = next(iter(self.idle))
            del self.idle[first]
            first.transport.abort()

    def now(self) -> float:
        """Seconds of a clock that stands still while the event loop does, as where the process is stopped: what clients
        sent meanwhile has not been looked at."""
        if self._looked is None:
            return time.monotonic()
        looked, then = self._looked
        return then + min(time.monotonic() - looked, 2 * self._interval)

    async def watch(self) -> None:
        """Look again and again whether one is too slow, for ever."""
        try:
            while True:
                now = self.now()
                self._looked = time.monotonic(), now
                for connection in list(self.open):
                    connection.look(now)
                await asyncio.sleep(self._interval)
        finally:
            self._looked = None

    @asynccontextmanager
    async def timeout(self, seconds: float) -> AsyncIterator[None]:
        """`asyncio.timeout` by this clock."""
        loop = asyncio.get_running_loop()
        began = self.now()

        def look() -> None:
            left = began + seconds - self.now()
            if left > 0:
                due.append(loop.call_later(left, look))
            else:
                limit.reschedule(loop.time())

        async with asyncio.timeout(None) as limit:
            due = [loop.call_later(seconds, look)]
            try:
                yield
            finally:
                due[-1].cancel()


class Connection(HttpToolsProtocol):
    """One of them."""

    all: ClassVar[Connections]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cycles: list[RequestResponseCycle] = []
        self._is_in_head, self._is_too_long, self._is_upgrade, self._is_refused = False, False, False, False
        self._num_head, self._num_ahead, self._num_dropped = 0, 0, 0
        self._head_since: float | None = None
        self._num_taken, self._taken_at = 0, 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open, and its first head is awaited."""
        self._written = _Counted(cast("asyncio.Transport", transport), self._is_awaited)
        super().connection_made(cast("asyncio.Transport", self._written))
        self._head_since = self._taken_at = self.all.now()
        self.all.open.add(self)
        self.all.make_room()
        self.all.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """It has closed. Each of its requests is told: uvicorn tells only the last that came."""
        self.all.open.discard(self)
        self.all.idle.pop(self, None)
        self.all.closed(self)
        self.pipeline.clear()
        for cycle in self._under_way:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something came."""
        if self.transport.is_closing():
            self._num_dropped += len(data)
            if self._num_dropped > self.all.limits.max_ahead_bytes:
                self.transport.abort()
            return
        was_in_head = self._is_in_head
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head and was_in_head:
            # The parser keeps a header to itself until it is whole, so bytes are counted as they come.
            self._num_head += len(data)
            if self._num_head > self.all.limits.max_head_bytes:
                self._is_too_long = True
                self.send_400_response("")
                return
        if self.pipeline:
            self._read_ahead(len(data))
        elif not self._under_way and self._head_since is None:
            self._head_since = self.all.now()

    def on_message_begin(self) -> None:
        """A head begins."""
        self._is_in_head, self._num_head = True, 0
        super().on_message_begin()
        self.scope["weft.connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        """A head is whole."""
        size = len(self.url) + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers)
        if size > self.all.limits.max_head_bytes:
            self._is_too_long = True
            raise ValueError("the head is too long")  # httptools makes an error of it that uvicorn answers
        if self.parser.get_http_version() not in VERSIONS:
            raise ValueError("another version")
        if self.parser.should_upgrade() and any(name in OF_A_BODY for name, _ in self.headers):
            self._is_upgrade = True  # the parser takes what follows for another protocol
            raise ValueError("a body after an upgrade")
        super().on_headers_complete()
        self._is_in_head, self._head_since = False, None
        self.all.idle.pop(self, None)
        self._cycles = [*self._under_way, self.cycle]

    def on_response_complete(self) -> None:
        """A request is answered."""
        if not self._under_way:
            self.all.idle[self] = None
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what can't be read: a head, or the form of a body."""
        most = self.all.limits.max_head_bytes
        if self._is_too_long:
            self._refuse(431, f"the request line and headers have more than {most} bytes")
        elif self._is_upgrade:
            self._refuse(400, "no other protocol is spoken here; send the body without the header Upgrade")
        else:
            self._refuse(400, "this is no HTTP/1.1 request")

    def look(self, now: float) -> None:
        """Give it up where it is too slow."""
        limits = self.all.limits
        is_late = self._head_since is not None and now - self._head_since > limits.max_head_s
        if is_late and not self.transport.is_closing():
            self._head_since = None
            if self._is_in_head:
                self._refuse(408, f"the headers did not come within {limits.max_head_s:g} s")
            else:
                self.transport.close()
        taken, is_all = self._written.taken
        if is_all or taken != self._num_taken:
            self._num_taken, self._taken_at = taken, now
        elif now - self._taken_at > limits.slow_reader_s:
            _log.warning("a client has read nothing for %g s: its connection is cut", limits.slow_reader_s)
            self.transport.abort()

    @property
    def _under_way(self) -> list[RequestResponseCycle]:
        """Requests that came and are not answered."""
        return [cycle for cycle in self._cycles if not cycle.response_complete]

    def _read_ahead(self, size: int) -> None:
        """uvicorn stops reading while requests wait for those before them, and would not see that their client leaves;
        so reading goes on, to a bound."""
        self._num_ahead = self._num_ahead + size if len(self._under_way) > 1 else 0
        if self._num_ahead > self.all.limits.max_ahead_bytes:
            _log.warning("a client sends requests and does not wait for answers: its connection is cut")
            self.transport.abort()
        else:
            self.flow.resume_reading()

    def _is_awaited(self) -> bool:
        """Whether the client may still be sending when its connection closes."""
        return self._is_refused or (self.cycle is not None and self.cycle.more_body)

    def _refuse(self, status: int, message: str) -> None:
        self.all.refused()
        for cycle in self._under_way:
            if cycle is not self.cycle or cycle.response_started or not cycle.more_body:
                self.transport.abort()  # an answer is on its way, and a second would be read as a part of it
                return
            cycle.disconnected = True  # this is the answer
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


class _Counted:
    """A transport that counts what is written to it. What is written in one turn of the loop, such as a head and the
    first part of a body, it gives to the system at once: a call of the system costs as much as making an event.
    `is_awaited` says, when it closes, whether the client may still be sending."""

    def __init__(self, transport: asyncio.Transport, is_awaited: Callable[[], bool]) -> None:
        self._transport, self._num_bytes = transport, 0
        self._waiting: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._is_awaited, self._is_over = is_awaited, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._is_over:
            return
        self._waiting.append(data)
        if len(data) > MOST_WAITING:
            self._write_waiting()  # a slow reader's pauses must be seen before more is written
        elif len(self._waiting) == 1:
            self._loop.call_soon(self._write_waiting)

    def is_closing(self) -> bool:
        return self._is_over or self._transport.is_closing()

    def close(self) -> None:
        self._write_waiting()
        if self.is_closing() or not self._is_awaited():
            self._transport.close()
            return
        self._is_over = True
        self._transport.write_eof()
        self._transport.resume_reading()
        self._loop.call_later(LINGER_S, self._transport.close)

    def _write_waiting(self) -> None:
        data, self._waiting = b"".join(self._waiting), []
        if data and not self._transport.is_closing():
            self._num_bytes += len(data)
            self._transport.write(data)

    @property
    def taken(self) -> tuple[int, bool]:
        """Bytes that the system took, and whether these are all."""
        left = self._transport.get_write_buffer_size()
        return self._num_bytes - left, not left
