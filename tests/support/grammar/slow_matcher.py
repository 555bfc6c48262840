"""A matcher that accepts every token, and is slow in one kind of call."""

from __future__ import annotations

import time


class SlowMatcher:
    """Computes for half a second in each call of the kind `slow` ("masks", "taking tokens" or "taking tokens back"),
    once it has accepted two tokens."""

    def __init__(self, slow: str) -> None:
        self.taken = 0
        self.slow = slow

    def spend(self, call: str) -> None:
        end = time.thread_time() + 0.5 * (call == self.slow and self.taken >= 2)
        while time.thread_time() < end:
            pass

    def accept(self, token: int) -> bool:
        self.spend("taking tokens")
        self.taken += 1
        return True

    def fill(self, row: object) -> bool:
        self.spend("masks")
        return False  # False: every token is allowed

    def rollback(self, count: int) -> None:
        self.spend("taking tokens back")
        self.taken -= count

    def is_terminated(self) -> bool:
        return False
