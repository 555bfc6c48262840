"""Requests on raw sockets whose answers are not read."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from support.server.asking import MESSAGES
from support.server.running import Running


def wait_for(holds: Any, seconds: float = 60) -> None:
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)


@contextmanager
def raw(server: Running, data: dict[str, Any], key: str = "") -> Iterator[socket.socket]:
    """Send a streaming chat request, and yield the socket with the unread answer."""
    with connected(server) as connection:
        connection.sendall(chat({"stream": True, **data}, key))
        yield connection


def chat(data: dict[str, Any], key: str = "") -> bytes:
    """Write a chat request as bytes, with its head and body."""
    body = json.dumps({"messages": MESSAGES, **data}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    head += f"Authorization: Bearer {key}\r\n\r\n" if key else "\r\n"
    return head.encode() + body


def connected(server: Running, receive_bytes: int | None = None) -> socket.socket:
    """Connect a socket without sending anything. `receive_bytes` is the size of its receive buffer."""
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(120)
    connection.connect(("127.0.0.1", server.port))
    return connection


def rest(connection: socket.socket) -> bytes:
    """Return everything until the server closes or resets the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received
