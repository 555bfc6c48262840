"""Random ids that nobody can guess: of requests, answers, their items and their calls.

The operating system's randomness is read in batches. Each read releases the interpreter lock, and a thread of a busy
server waits to get it back.
"""

from __future__ import annotations

import os
import time
from collections import deque

SIZE, BATCH = 16, 256
_drawn: deque[bytes] = deque()

ITEM_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""Types of items in a response, and how their ids begin."""


def new_hex() -> str:
    """16 random bytes in hexadecimal. Any thread may call this."""
    while True:
        try:
            return _drawn.popleft().hex()
        except IndexError:
            random = os.urandom(SIZE * BATCH)
            _drawn.extend(random[i : i + SIZE] for i in range(0, len(random), SIZE))


def new_id(prefix: str, request_id: str | None = None) -> tuple[str, int]:
    """The id of an answer and the time in seconds. The id is `prefix` and `request_id`, which the client may choose."""
    return f"{prefix}{request_id or new_hex()}", int(time.time())


def new_item_id(kind: str) -> str:
    """The id of an item of a response. `kind` is a type in `ITEM_PREFIXES`."""
    return f"{ITEM_PREFIXES[kind]}_{new_hex()}"


def new_call_id() -> str:
    """The id of a tool call."""
    return f"call_{new_hex()[:24]}"
