"""Requests on sockets of their own, whose answers nobody reads."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.server.asking import MESSAGES
from support.server.running import Running


def wait_for(holds: Any, seconds: float = 20) -> None:
    limit = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)


@contextmanager
def raw(server: Running, data: dict[str, Any], key: str = "") -> Iterator[socket.socket]:
    """A request on a socket of its own, with the server's answer unread."""
    body = json.dumps({"messages": MESSAGES, "stream": True, **data}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    head += f"Authorization: Bearer {key}\r\n\r\n" if key else "\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(head.encode() + body)
        yield connection
