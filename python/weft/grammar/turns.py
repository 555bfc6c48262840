"""Whose guide is compiled next: clients in turn, so that many guides of one delay another's by one compile.

The lock of whoever owns them guards both classes.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from weft.grammar.guide import Guide
from weft.grammar.prepared import digest

T = TypeVar("T", bound=Hashable)


class Turns(Generic[T]):
    """Jobs that wait, each for one client or several."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, deque[T]] = OrderedDict()  # whose turn is next comes first
        self._jobs: set[T] = set()
        self._at_work: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: T) -> bool:
        return job in self._jobs

    def num_waiting(self, client: Hashable) -> int:
        """How many jobs wait for a client."""
        return sum(job in self._jobs for job in self._waiting.get(client, ()))

    def add(self, client: Hashable, job: T) -> None:
        """Let a job wait for a client, too: it comes when the turn is at the first of its clients."""
        self._jobs.add(job)
        jobs = self._waiting.setdefault(client, deque())
        if job not in jobs:
            jobs.append(job)

    def take(self) -> tuple[Hashable, T]:
        """The next job, and whose turn it is: of the clients with the fewest jobs at work, the one that waits longest.
        There must be a job."""
        for client in [client for client in self._waiting if not self._has_more(client)]:
            del self._waiting[client]
        client = min(self._waiting, key=lambda each: self._at_work[each])  # the first of equals
        job = self._waiting[client].popleft()
        self._jobs.discard(job)
        self._waiting.move_to_end(client)
        self._at_work[client] += 1
        return client, job

    def done(self, client: Hashable) -> None:
        """A job that `take` gave for this client has ended."""
        self._at_work[client] -= 1
        if self._at_work[client] <= 0:
            del self._at_work[client]

    def clear(self) -> list[T]:
        """Take all at once."""
        jobs, self._jobs = list(self._jobs), set()
        self._waiting.clear()
        return jobs

    def _has_more(self, client: Hashable) -> bool:
        """Drops what came in another client's turn."""
        jobs = self._waiting[client]
        while jobs and jobs[0] not in self._jobs:
            jobs.popleft()
        return bool(jobs)


class Refusals:
    """Why guides were refused, so that one that is sent again costs nothing: the last `limit`, for `keep_s` seconds."""

    def __init__(self, limit: int = 1024, keep_s: float = 300.0) -> None:
        self._limit = limit
        self._keep_s = keep_s
        self._reasons: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._reasons)

    def put(self, guide: Guide, reason: str) -> None:
        """Remember a guide, unless it holds an object of the program."""
        if guide.payload is None:
            key = digest(guide)
            self._reasons.pop(key, None)
            self._reasons[key] = (reason, time.monotonic() + self._keep_s)
            while len(self._reasons) > self._limit:
                self._reasons.popitem(last=False)

    def get(self, guide: Guide) -> str | None:
        """Why a guide was refused, or None."""
        if guide.payload is not None or not self._reasons:
            return None
        reason, until = self._reasons.get(digest(guide), ("", 0.0))
        return reason if time.monotonic() < until else None
