"""A client's connection, which searches the answer for a few bytes."""

from __future__ import annotations

import asyncio
import socket
import time

SMALL = 4096
"""The receive buffer of a reader that blocks the server, in bytes."""


async def connected(port: int, receive_bytes: int | None = None) -> Connection:
    """Connect, with a receive buffer of this size if one is given."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    try:
        await loop.sock_connect(sock, ("127.0.0.1", port))
    except OSError:
        sock.close()
        raise
    _, connection = await loop.create_connection(Connection, sock=sock)
    return connection


class Connection(asyncio.Protocol):
    """A connection, with the answer to its current request."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_open = True
        self._done: asyncio.Future[None] | None = None
        self._at_least, self._end = 0, b""
        self._restart()

    def ask(self, content: bytes, end: bytes, at_least: int = 0) -> asyncio.Future[None]:
        """Send a body. The future is done when `end` or `at_least` bytes have arrived, or when the connection
        closes."""
        self._restart()
        self._end, self._at_least = end, at_least
        self._done = asyncio.get_running_loop().create_future()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: "
        self.wire.write(head + str(len(content)).encode() + b"\r\n\r\n" + content)
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

    @property
    def wire(self) -> asyncio.Transport:
        """The transport for sending."""
        assert self.transport is not None
        return self.transport

    def _restart(self) -> None:
        self.head = self.tail = b""
        self.events = self.num_bytes = 0
        self.first_s, self._began = 0.0, time.perf_counter()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
