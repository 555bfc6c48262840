"""Unguessable random ids for requests, answers, output items and tool calls.

`os.urandom` is read in batches, because each read releases the GIL. On a busy server the thread then waits to get it
back.
"""

from __future__ import annotations

import os
import time
from collections import deque

SIZE, BATCH = 16, 256
_drawn: deque[bytes] = deque()

ITEM_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""The id prefix of each type of response item."""


def new_hex() -> str:
    """Return 16 random bytes in hexadecimal. Thread-safe."""
    while True:
        try:
            return _drawn.popleft().hex()
        except IndexError:
            random = os.urandom(SIZE * BATCH)
            _drawn.extend(random[i : i + SIZE] for i in range(0, len(random), SIZE))


def new_id(prefix: str, request_id: str | None = None) -> tuple[str, int]:
    """Return a new answer id and the Unix time in seconds. The id is `prefix` plus the client's `request_id` or, if it
    gave none, random hexadecimal digits."""
    return f"{prefix}{request_id or new_hex()}", int(time.time())


def new_item_id(kind: str) -> str:
    """Return a new id for a response item. `kind` is a type in `ITEM_PREFIXES`."""
    return f"{ITEM_PREFIXES[kind]}_{new_hex()}"


def new_call_id(prefix: str = "call_") -> str:
    """Return a new id for a tool call."""
    return f"{prefix}{new_hex()[:24]}"
