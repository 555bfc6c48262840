"""Measures the CPU time of other processes. A turn during other load is not meaningful."""

from __future__ import annotations

import os
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
IDLE = (3, 4)
"""The columns of idle time in /proc/stat."""


class Disturbance:
    """Counts the cores that processes other than `pid` keep busy, starting at its creation."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._begin, self._all, self._own = time.monotonic(), busy_s(), own_s(pid)

    def cores(self) -> float:
        """Return the average number of these busy cores until now."""
        others = busy_s() - self._all - (own_s(self._pid) - self._own)
        return max(0.0, others / (time.monotonic() - self._begin))


def busy_s() -> float:
    """Return the busy seconds of all cores since boot. User time already includes guest time."""
    times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks for i, ticks in enumerate(times) if i not in IDLE) / TICKS


def own_s(pid: int) -> float:
    """Return the CPU seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
