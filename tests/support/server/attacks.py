"""Attacks on a server: helpers that write raw requests, and a check that another client still gets its answers."""

from __future__ import annotations

from support.server.asking import ask
from support.server.running import Running

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
ADA, BO = ({"Authorization": f"Bearer key-of-{name}"} for name in ("ada", "bo"))
INNOCENT = {"prompt": "Text: Ada Berg", "max_tokens": 3, "seed": 7, "temperature": 1}
MIB = 1 << 20

UNFINISHED = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer key-of-ada\r\n"


TEXT: dict[str, str] = {}
"""The other client's first answer, under the key ""."""


def check_neighbour(server: Running, headers: dict[str, str] | None = None) -> None:
    """Check that the other client's request still gets the same answer as the first time."""
    status, answer = ask(f"{server.url}{COMPLETIONS}", INNOCENT, headers=headers)
    assert status == 200 and answer["choices"][0]["text"] == TEXT.setdefault("", answer["choices"][0]["text"])


def get(path: bytes = b"/v1/models", *lines: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    """Write a GET request as bytes."""
    head = (b"GET %s %s" % (path, version), b"Connection: close", *lines)
    if not any(line.startswith(b"Host:") for line in lines):
        head += (b"Host: 127.0.0.1",)
    return b"\r\n".join(head) + b"\r\n\r\n"
