"""Whose time is up, and when the next one's will be, at a cost that does not grow with those who have time left."""

from __future__ import annotations

import itertools
from heapq import heapify, heappop, heappush

from weft.engine.sequence import Sequence

MOST_STALE = 64
"""Entries of requests that have ended, beyond as many as there are others, before they are dropped all at once."""


class Deadlines:
    """Requests that have a deadline, waiting or not, until they are forgotten. `entries` is a heap of deadlines,
    numbers and requests, some of which may have ended."""

    def __init__(self) -> None:
        self._live: set[Sequence] = set()
        self.entries: list[tuple[float, int, Sequence]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._live)

    def add(self, sequence: Sequence, deadline: float) -> None:
        """Watch a request, whose time is up at `deadline`."""
        self._live.add(sequence)
        heappush(self.entries, (deadline, next(self._numbers), sequence))

    def forget(self, sequence: Sequence) -> None:
        """The request ends. One that is not watched is left alone."""
        if sequence not in self._live:
            return
        self._live.remove(sequence)
        if not self._live or len(self.entries) > 2 * len(self._live) + MOST_STALE:
            self.entries = [entry for entry in self.entries if entry[2] in self._live]
            heapify(self.entries)

    @property
    def first(self) -> float | None:
        """The first moment at which somebody's time is up; None without one."""
        while self.entries and self.entries[0][2] not in self._live:
            heappop(self.entries)
        return self.entries[0][0] if self.entries else None

    def late(self, now: float) -> list[Sequence]:
        """Those whose time is up at the moment `now`, each once, the first first."""
        late = []
        while (first := self.first) is not None and first <= now:
            late.append(heappop(self.entries)[2])
        return late
