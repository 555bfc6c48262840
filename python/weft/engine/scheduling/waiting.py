"""Sequences without a slot: they wait for their guide, for their matcher's start, or for a slot and pages."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

from weft.core.awake import AwakeWatch
from weft.engine.scheduling.deadlines import Deadlines
from weft.engine.scheduling.policy import FairTurns, WaitingQueue
from weft.engine.scheduling.starts import Failures, MatcherStarts
from weft.engine.sequence import Sequence, Stage
from weft.grammar.base import CompiledGuide
from weft.grammar.starts import StartedGuide


class Waiting:
    """Requests without a slot, and the clocks of all. `max_idle_s`: how long one may wait that was preempted for want
    of pages.

    In the `queue` are those that could have a slot now; those that are `unready` wait for their guide, which may be
    among the `compiled`, or for the start of their matcher. `deadlines` are of all, `preempted` since when.
    """

    def __init__(self, max_idle_s: float, turns: FairTurns, starts: MatcherStarts) -> None:
        self._max_idle_s = max_idle_s
        self.starts = starts
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
        return bool(self.compiled) or self.starts.has_news

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
        if _starts_ahead(sequence):
            self.starts.admit(sequence)
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
        if _starts_ahead(sequence):
            self.starts.forget(sequence)
        self.turns.forget(sequence)
        if sequence.deadline is not None:
            self.deadlines.forget(sequence)
        self.preempted.pop(sequence, None)

    def collect(self) -> Failures:
        """Queue the requests whose guide is compiled, and whose matcher has started. Returns those that failed, with
        their errors."""
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


def _starts_ahead(sequence: Sequence) -> bool:
    return sequence.guide is not None and isinstance(sequence.guide.compiled, StartedGuide)
