"""Hostile clients that a server must survive: invalid bodies, endless headers, and answers that are not read."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from server.connection import Connection

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
    (b'{"messages": ' + b"[" * 20_000 + b"]" * 20_000 + b"}", 400),
    (b'{"messages": [' + b"{}," * 300_000 + b"{}]}", 400),
    (b'{"messages": [{"role": "user", "content": "x"}], "stop": [' + b"1," * 300_000 + b"1]}", 400),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
    (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', 400),
]
HOLD_S = 15.0
"""The seconds for which a reader stalls. In this time the server's buffers fill, and its `slow_reader_s` passes."""
UNREAD_S = 3.0
MESSAGES = [{"role": "user", "content": "Text: "}]
LARGE: dict[str, Any] = {
    "messages": MESSAGES, "stream": True, "ignore_eos": True, "max_tokens": 900, "temperature": 1.0, "n": 2,
    "logprobs": True, "top_logprobs": 20,
}  # fmt: skip
"""A request for some megabytes, which is more than the buffers of two sockets hold."""


async def nonsense(connection: Connection, draw: random.Random) -> None:
    """Send a body that the server must refuse. Raises `ValueError` if it does not."""
    content, status = draw.choice(NONSENSE)
    await connection.ask(content, b"}", 1)
    said = connection.head.partition(b"\r\n")[0]
    if str(status).encode() not in said:
        raise ValueError(f"nonsense was answered with {said!r}, not {status}")


async def dribble(connection: Connection, draw: random.Random) -> None:
    """Send headers byte by byte without ever ending them."""
    for letter in (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * draw.randrange(40)
    ):
        if not connection.is_open:
            return
        connection.wire.write(bytes([letter]))
        await asyncio.sleep(0.05)


async def unread(connection: Connection, draw: random.Random) -> None:
    """Send a request, streamed or not, and do not read the answer."""
    connection.wire.pause_reading()
    connection.ask(json.dumps({**LARGE, "stream": draw.random() < 0.5, "max_tokens": 200}).encode(), b"")
    await asyncio.sleep(UNREAD_S)


async def stall(connection: Connection) -> bool:
    """Request a long answer, and read it after a long pause. Returns whether the server gave up."""
    connection.wire.pause_reading()
    done = connection.ask(json.dumps(LARGE).encode(), b"\r\n0\r\n\r\n")
    await asyncio.sleep(HOLD_S)
    connection.wire.resume_reading()
    await done
    return b"[DONE]" not in connection.tail
