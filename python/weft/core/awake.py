"""Stopwatches and timers that count only the time in which this process runs (`csrc/support/awake.h`), so that a
suspended process does not time out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from weft._core import AwakeWatch

__all__ = ["AwakeTimer", "AwakeWatch", "cpu_seconds"]

TICK_S = 0.01
"""The resolution of the clock and the shortest wait, in seconds."""


class AwakeTimer(threading.Thread):
    """Calls `ring` on its own thread once the process has run for `seconds`. `cancel`, or the end of the `with` block,
    prevents the call."""

    def __init__(self, seconds: float, ring: Callable[[], object]) -> None:
        super().__init__(name="weft-timer", daemon=True)
        self._seconds, self._ring = seconds, ring
        self._is_over = threading.Event()

    def cancel(self) -> None:
        """Prevent the call of `ring`, unless it has begun."""
        self._is_over.set()

    def run(self) -> None:
        """Wait until the time is over or `cancel` is called. Call `ring` unless the timer was cancelled."""
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


def cpu_seconds(pid: int) -> float:
    """The CPU seconds that a process has used; 0 for a process that no longer exists."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, numbers[11:13])) / os.sysconf("SC_CLK_TCK")
