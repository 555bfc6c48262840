"""Ids that nobody can guess. The system's randomness is read for many at once: each read lets go of the lock of Python,
and a busy server waits to have it again."""

from __future__ import annotations

import os
from collections import deque

SIZE, AT_ONCE = 16, 256
_drawn: deque[bytes] = deque()


def new_hex() -> str:
    """16 random bytes, in hexadecimal; on any thread."""
    while True:
        try:
            return _drawn.popleft().hex()
        except IndexError:
            drawn = os.urandom(SIZE * AT_ONCE)
            _drawn.extend(drawn[i : i + SIZE] for i in range(0, len(drawn), SIZE))
