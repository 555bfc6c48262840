"""Whose time is up, and when the next one's will be, at a cost that does not grow with those who have time left."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from heapq import heapify, heappop, heappush

from weft.core.awake import AwakeWatch
from weft.engine.scheduler.policy import FairTurns, WaitingQueue
from weft.engine.scheduler.programs import Failures, Programs
from weft.engine.sequence import Sequence, Stage
from weft.grammar.base import CompiledGuide
from weft.grammar.starts import StartedGuide

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


# MERGED-DOC """Waiting requests: for a guide to be compiled, for a program to start, or for a slot and pages; and their clocks."""


class Waiting:
    """Requests without a slot, and the clocks of all. `max_idle_s`: how long one may wait that was preempted for want
    of pages.

    In the `queue` are those that could have a slot now; those that are `unready` wait for their guide, which may be
    among the `compiled`, or for its program. `deadlines` are of all, `preempted` since when.
    """

    def __init__(self, max_idle_s: float, turns: FairTurns, programs: Programs) -> None:
        self._max_idle_s = max_idle_s
        self.programs = programs
        self.turns = turns
        self.queue = WaitingQueue(turns)
        self.unready: dict[Sequence, None] = {}
        self._compiling: dict[Future[CompiledGuide], dict[Sequence, None]] = {}
        self.compiled: deque[Future[CompiledGuide]] = deque()  # other threads add to it
        self.deadlines = Deadlines()
        self.preempted: dict[Sequence, AwakeWatch | None] = {}

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.queue
        yield from self.unready

    @property
    def next_deadline(self) -> float | None:
        """The first moment, of `time.perf_counter`, at which some request must end; None without one."""
        return self.deadlines.first

    @property
    def has_compiled(self) -> bool:
        """Whether `collect` would find something."""
        return bool(self.compiled) or self.programs.has_news

    @property
    def has_late(self) -> bool:
        """Whether somebody's time is up."""
        first = self.deadlines.first
        return first is not None and first <= time.perf_counter()

    def add(self, sequence: Sequence) -> None:
        """A new request."""
        if sequence.deadline is not None:
            self.deadlines.add(sequence, sequence.deadline)
        self.turns.take(sequence)
        if sequence.stage is not Stage.COMPILING:
            self.queue.add(sequence)
            return
        assert sequence.guide is not None
        self.unready[sequence] = None
        compiling = sequence.guide.compiling
        alike = self._compiling.setdefault(compiling, {})
        alike[sequence] = None
        if len(alike) == 1:
            compiling.add_done_callback(self.compiled.append)

    def add_again(self, sequence: Sequence, yields: bool = False) -> None:
        """A request that was preempted. One that `yields` its slot to another client may wait as long as it takes."""
        self.preempted[sequence] = None if yields else AwakeWatch()
        self.queue.add(sequence)

    def admit(self, sequence: Sequence) -> bool:
        """The request got what it waited for; whether for the first time."""
        self.queue.remove(sequence)
        self.turns.admit(sequence)
        if _has_program(sequence):
            self.programs.admit(sequence)
        is_new = sequence not in self.preempted
        self.preempted.pop(sequence, None)
        return is_new

    def forget(self, sequence: Sequence) -> None:
        """The request ends, wherever it is."""
        if sequence.stage is Stage.COMPILING:
            self._stop_compiling(sequence)
        elif sequence.stage is Stage.QUEUED and sequence in self.queue:
            self.queue.remove(sequence)
        self.unready.pop(sequence, None)
        if _has_program(sequence):
            self.programs.forget(sequence)
        self.turns.forget(sequence)
        if sequence.deadline is not None:
            self.deadlines.forget(sequence)
        self.preempted.pop(sequence, None)

    def collect(self) -> Failures:
        """Queue the requests whose guide is compiled, and whose program has started; those that failed, and why."""
        failed: Failures = []
        while self.compiled:
            compiling = self.compiled.popleft()
            error = compiling.exception()
            for sequence in list(self._compiling.get(compiling, ())):
                assert sequence.guide is not None
                sequence.output.stats.note_guide_ready()  # where its own callback was not called yet
                if error is not None:
                    failed.append((sequence, error))
                    continue
                self._stop_compiling(sequence)
                sequence.guide.compiled = compiled = compiling.result()
                sequence.output.guide_notes = compiled.notes
                if isinstance(compiled, StartedGuide):
                    self.programs.add(sequence)
                else:
                    self._queue(sequence)
        if self.unready or self.programs.orphans:
            started, more = self.programs.collect()
            for sequence in started:
                self._queue(sequence)
            failed += more
        return failed

    def _queue(self, sequence: Sequence) -> None:
        del self.unready[sequence]
        sequence.move(Stage.QUEUED)
        self.queue.add(sequence)

    def _stop_compiling(self, sequence: Sequence) -> None:
        assert sequence.guide is not None
        compiling = sequence.guide.compiling
        alike = self._compiling.get(compiling)
        if alike is not None:
            alike.pop(sequence, None)
            if not alike:
                del self._compiling[compiling]

    def late(self) -> list[Sequence]:
        """Those whose time is up."""
        late = self.deadlines.late(time.perf_counter())
        clocks = self.preempted.items()
        idle = [
            sequence for sequence, waits in clocks if waits is not None and waits.seconds > self._max_idle_s
        ]
        return late + [sequence for sequence in idle if sequence not in late]


def _has_program(sequence: Sequence) -> bool:
    return sequence.guide is not None and isinstance(sequence.guide.compiled, StartedGuide)
