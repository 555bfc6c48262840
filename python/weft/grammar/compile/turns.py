"""Whose guide is compiled next: clients in turn, so that many guides of one delay another's by one compile.

The lock of their owner guards both classes.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from weft.errors import brief
from weft.grammar.compile.prepared import digest
from weft.grammar.guide import Guide
from weft.grammar.reasons import Reasons

T = TypeVar("T", bound=Hashable)

_log = logging.getLogger(__name__)


class Turns(Generic[T]):
    """Jobs that wait, each for one client or several. `size` tells how much there is of one.

    Of a client's jobs the oldest and the smallest come alternately: many clients may have no name, and share a turn.
    """

    def __init__(self, size: Callable[[T], int]) -> None:
        self._size = size
        self._waiting: OrderedDict[Hashable, _Line[T]] = OrderedDict()  # whose turn is next comes first
        self._clients: dict[T, set[Hashable]] = {}  # of each job that waits
        self._at_work: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, job: T) -> bool:
        return job in self._clients

    def num_waiting(self, client: Hashable) -> int:
        """How many jobs wait for a client."""
        line = self._waiting.get(client)
        return 0 if line is None else len(line.jobs)

    def add(self, client: Hashable, job: T) -> None:
        """Let a job wait for a client, too: it comes when the turn is at the first of its clients."""
        self._clients.setdefault(job, set()).add(client)
        self._waiting.setdefault(client, _Line()).add(job, self._size(job))

    def take(self) -> tuple[Hashable, T]:
        """The next job, and whose turn it is: of the clients with the fewest jobs at work, the one that waits longest.
        There must be a job."""
        client = min(self._waiting, key=lambda each: self._at_work[each])  # the first of equals
        job = self._waiting[client].next()
        self._waiting.move_to_end(client)
        self._at_work[client] += 1
        for each in self._clients.pop(job):
            self._waiting[each].drop(job)
            if not self._waiting[each].jobs:
                del self._waiting[each]
        return client, job

    def done(self, client: Hashable) -> None:
        """A job that `take` gave for this client has ended."""
        self._at_work[client] -= 1
        if self._at_work[client] <= 0:
            del self._at_work[client]

    def clear(self) -> list[T]:
        """Take all at once."""
        jobs = list(self._clients)
        self._clients.clear()
        self._waiting.clear()
        return jobs


class _Line(Generic[T]):
    """The jobs of one client: by age, and by size."""

    def __init__(self) -> None:
        self.jobs: OrderedDict[T, int] = OrderedDict()  # and their numbers
        self._by_number: dict[int, T] = {}
        self._by_size: list[tuple[int, int]] = []  # sizes and numbers, also of jobs that are gone
        self._numbers = itertools.count()
        self._takes_smallest = False

    def add(self, job: T, size: int) -> None:
        if job not in self.jobs:
            number = self.jobs[job] = next(self._numbers)
            self._by_number[number] = job
            heapq.heappush(self._by_size, (size, number))

    def drop(self, job: T) -> None:
        del self._by_number[self.jobs.pop(job)]
        if len(self._by_size) > 2 * len(self.jobs) + 16:
            self._by_size = [entry for entry in self._by_size if entry[1] in self._by_number]
            heapq.heapify(self._by_size)

    def next(self) -> T:
        """Which one comes, and is to be dropped: the oldest and the smallest in turn."""
        is_smallest, self._takes_smallest = self._takes_smallest, not self._takes_smallest
        if not is_smallest:
            return next(iter(self.jobs))
        while self._by_size[0][1] not in self._by_number:
            heapq.heappop(self._by_size)
        return self._by_number[self._by_size[0][1]]


class Refusals:
    """Why guides were refused, as `Reasons` keeps it."""

    def __init__(self, limit: int = 1024, keep_s: float = 300.0) -> None:
        self._reasons: Reasons[str] = Reasons(limit, keep_s)

    def __len__(self) -> int:
        return len(self._reasons)

    def put(self, guide: Guide, reason: str) -> None:
        """Remember a guide, unless it holds an object of the program; it is logged."""
        _log.warning("guide (%s) refused: %s", guide.kind, brief(reason))
        if guide.payload is None:
            self._reasons.put(digest(guide), reason)

    def get(self, guide: Guide) -> str | None:
        """Why a guide was refused, or None."""
        if guide.payload is not None or not len(self._reasons):
            return None
        return self._reasons.get(digest(guide))
