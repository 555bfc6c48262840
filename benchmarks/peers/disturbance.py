"""Measures the CPU time of other processes. A turn during other load is not meaningful."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
IDLE = (3, 4)
"""The columns of idle time in /proc/stat."""
SESSION, TIMES = 3, (11, 12, 13, 14)
"""The columns, after the name in /proc/PID/stat, of a process's session, and of the user and system time of itself and
of its children that have ended."""


class Disturbance:
    """Counts the cores that processes outside session `pid` keep busy, starting at its creation. An engine's process
    leads a session, which its children belong to."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._begin, self._all, self._session = time.monotonic(), busy_s(), session_s(pid)

    def cores(self) -> float:
        """Return the average number of these busy cores until now."""
        others = busy_s() - self._all - (session_s(self._pid) - self._session)
        return max(0.0, others / (time.monotonic() - self._begin))


def busy_s() -> float:
    """Return the busy seconds of all cores since boot. User time already includes guest time."""
    times = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks for i, ticks in enumerate(times) if i not in IDLE) / TICKS


def session_s(pid: int) -> float:
    """Return the CPU seconds of the processes of a session, and of their children that have ended."""
    total = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            fields = file.read_text().rpartition(") ")[2].split()
            if int(fields[SESSION]) == pid:
                total += sum(int(fields[column]) for column in TIMES)
    return total / TICKS
