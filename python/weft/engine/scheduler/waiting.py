"""Sequences without a slot. They wait for their guide's compilation, for their matcher's start, or for a slot and
pages."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from heapq import heapify, heappop, heappush

from weft.core.awake import AwakeWatch
from weft.engine.scheduler.policy import FairTurns, WaitingQueue
from weft.engine.scheduler.starts import Failures, MatcherStarts
from weft.engine.sequence import Sequence, Stage
from weft.grammar.base import CompiledGuide
from weft.grammar.starts import StartedGuide, compile_error

MAX_STALE = 64
"""The heap of deadlines drops its stale entries once they outnumber the live ones by more than this."""


class Deadlines:
    """The deadlines of all waiting and running sequences.

    `entries` is a heap of (deadline, number, sequence) with the earliest deadline on top. The number breaks ties.
    Entries of ended sequences stay until they reach the top, or until too many are stale (`MAX_STALE`).
    """

    def __init__(self) -> None:
        self._live: set[Sequence] = set()
        self.entries: list[tuple[float, int, Sequence]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._live)

    def add(self, sequence: Sequence, deadline: float) -> None:
        """Watch a sequence until its `deadline`."""
        self._live.add(sequence)
        heappush(self.entries, (deadline, next(self._numbers), sequence))

    def remove(self, sequence: Sequence) -> None:
        """Stop watching a sequence, if it is watched."""
        if sequence not in self._live:
            return
        self._live.remove(sequence)
        if not self._live or len(self.entries) > 2 * len(self._live) + MAX_STALE:
            self.entries = [entry for entry in self.entries if entry[2] in self._live]
            heapify(self.entries)

    @property
    def first(self) -> float | None:
        """The earliest deadline; None if there is none."""
        while self.entries and self.entries[0][2] not in self._live:
            heappop(self.entries)
        return self.entries[0][0] if self.entries else None

    def late(self, now: float) -> list[Sequence]:
        """The sequences whose deadline has passed at the time `now`, earliest first. Each is returned once, and the
        caller must end it."""
        late = []
        while (first := self.first) is not None and first <= now:
            late.append(heappop(self.entries)[2])
        return late


class Waiting:
    """The sequences without a slot.

    queue: those that wait for a slot and pages.
    unready: those that wait for their guide's compilation, or for their matcher's start.
    compiled: finished compilations that `collect` has not handled yet. Other threads append to it.
    deadlines: the deadlines of all sequences, including running ones.
    preempted: a clock for each preempted sequence, which measures its wait. The sequence may wait `max_idle_s` seconds.
        A sequence that yielded its slot has no clock (None) and no limit.
    num_changes: the number of changes so far on which a schedule may depend: a sequence was queued, admitted or
        removed, or must read its text again.
    """

    def __init__(self, max_idle_s: float, turns: FairTurns, starts: MatcherStarts) -> None:
        self._max_idle_s = max_idle_s
        self.num_changes = 0
        self.starts = starts
        self.turns = turns
        self.queue = WaitingQueue(turns)
        self.unready: dict[Sequence, None] = {}
        self._compiling: dict[Future[CompiledGuide], dict[Sequence, None]] = {}
        self.compiled: deque[Future[CompiledGuide]] = deque()
        self.deadlines = Deadlines()
        self.preempted: dict[Sequence, AwakeWatch | None] = {}

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.queue
        yield from self.unready

    def __len__(self) -> int:
        return len(self.queue) + len(self.unready)

    @property
    def can_collect(self) -> bool:
        """Whether `collect` might make progress."""
        return bool(self.compiled) or self.starts.has_news

    @property
    def has_late(self) -> bool:
        """Whether a deadline has passed."""
        first = self.deadlines.first
        return first is not None and first <= time.perf_counter()

    def add(self, sequence: Sequence) -> None:
        """Add a new sequence."""
        self.num_changes += 1
        if sequence.deadline is not None:
            self.deadlines.add(sequence, sequence.deadline)
        self.turns.take(sequence)
        if sequence.stage is not Stage.COMPILING:
            self.queue.add(sequence)
            return
        assert sequence.guide is not None
        self.unready[sequence] = None
        compiling = sequence.guide.compiling
        waiting = self._compiling.setdefault(compiling, {})
        waiting[sequence] = None
        if len(waiting) == 1:
            compiling.add_done_callback(self.compiled.append)

    def add_again(self, sequence: Sequence, yields: bool = False) -> None:
        """Queue a preempted sequence. If it `yields` its slot to another client, it may wait without limit."""
        self.num_changes += 1
        self.preempted[sequence] = None if yields else AwakeWatch()
        self.queue.add(sequence)

    def admit(self, sequence: Sequence) -> bool:
        """Remove a sequence that got a slot and pages. Returns whether this is its first admission."""
        self.num_changes += 1
        self.queue.remove(sequence)
        self.turns.admit(sequence)
        if _starts_ahead(sequence):
            self.starts.admit(sequence)
        is_new = sequence not in self.preempted
        self.preempted.pop(sequence, None)
        return is_new

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that ends, in any stage."""
        self.num_changes += 1
        if sequence.stage is Stage.COMPILING:
            self._stop_compiling(sequence)
        elif sequence.stage is Stage.QUEUED and sequence in self.queue:
            self.queue.remove(sequence)
        self.unready.pop(sequence, None)
        if _starts_ahead(sequence):
            self.starts.remove(sequence)
        self.turns.remove(sequence)
        if sequence.deadline is not None:
            self.deadlines.remove(sequence)
        self.preempted.pop(sequence, None)

    def collect(self) -> Failures:
        """Queue the sequences that are ready: the guide is compiled, and the matcher has started if it must start
        ahead. Returns the sequences that failed, with their errors; the caller must end them."""
        failed: Failures = []
        while self.compiled:
            compiling = self.compiled.popleft()
            error = compile_error(compiling)
            for sequence in list(self._compiling.get(compiling, ())):
                assert sequence.guide is not None
                sequence.output.stats.note_guide_ready()  # the future's callback for it may not have run yet
                if error is not None:
                    failed.append((sequence, error))
                    continue
                self._stop_compiling(sequence)
                sequence.guide.compiled = compiled = compiling.result()
                sequence.output.guide_notes = compiled.notes
                if isinstance(compiled, StartedGuide):
                    self.starts.add(sequence)
                else:
                    self._queue(sequence)
        if self.unready or self.starts.orphans:
            started, more = self.starts.collect()
            for sequence in started:
                self._queue(sequence)
            failed += more
        return failed

    def _queue(self, sequence: Sequence) -> None:
        self.num_changes += 1
        del self.unready[sequence]
        sequence.move(Stage.QUEUED)
        self.queue.add(sequence)

    def _stop_compiling(self, sequence: Sequence) -> None:
        assert sequence.guide is not None
        compiling = sequence.guide.compiling
        waiting = self._compiling.get(compiling)
        if waiting is not None:
            waiting.pop(sequence, None)
            if not waiting:
                del self._compiling[compiling]

    def late(self) -> list[Sequence]:
        """The sequences whose deadline has passed, or that have waited too long since they were preempted."""
        late = self.deadlines.late(time.perf_counter())
        idle = [
            sequence
            for sequence, watch in self.preempted.items()
            if watch is not None and watch.seconds > self._max_idle_s
        ]
        return late + [sequence for sequence in idle if sequence not in late]


def _starts_ahead(sequence: Sequence) -> bool:
    return sequence.guide is not None and isinstance(sequence.guide.compiled, StartedGuide)
