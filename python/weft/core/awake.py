"""Stopwatches and timers that count only time in which this process runs (`csrc/support/awake.h`), so that a stopped
process does not time out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from weft._core import AwakeWatch

__all__ = ["AwakeTimer", "AwakeWatch"]

TICK_S = 0.01
"""The resolution of the clock, and the shortest wait."""


class AwakeTimer(threading.Thread):
    """Calls `ring` on a thread of its own once the process has run for `seconds`, unless it is cancelled before, as it
    is by the end of its `with` block."""

    def __init__(self, seconds: float, ring: Callable[[], object]) -> None:
        super().__init__(name="weft-timer", daemon=True)
        self._seconds, self._ring = seconds, ring
        self._is_over = threading.Event()

    def cancel(self) -> None:
        """Never call `ring`, unless that has begun."""
        self._is_over.set()

    def run(self) -> None:
        """Wait, then call `ring`."""
        watch = AwakeWatch()
        while (left := self._seconds - watch.seconds) > 0:
            if self._is_over.wait(max(left, TICK_S)):
                return
        if not self._is_over.is_set():
            self._ring()

    def __enter__(self) -> AwakeTimer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel()
