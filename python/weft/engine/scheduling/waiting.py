"""Waiting requests: for a guide to be compiled, for a program to start, or for a slot and pages; and their clocks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

from weft.core.awake import AwakeWatch
from weft.engine.scheduling.deadlines import Deadlines
from weft.engine.scheduling.policy import FairTurns, WaitingQueue
from weft.engine.scheduling.programs import Failures, Programs
from weft.engine.sequence import Request, Stage
from weft.grammar.base import CompiledGuide
from weft.grammar.starts import StartedGuide


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
        self.unready: dict[Request, None] = {}
        self._compiling: dict[Future[CompiledGuide], dict[Request, None]] = {}
        self.compiled: deque[Future[CompiledGuide]] = deque()  # other threads add to it
        self.deadlines = Deadlines()
        self.preempted: dict[Request, AwakeWatch | None] = {}

    def __iter__(self) -> Iterator[Request]:
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

    def add(self, request: Request) -> None:
        """A new request."""
        if request.queueing.deadline is not None:
            self.deadlines.add(request, request.queueing.deadline)
        self.turns.take(request)
        if request.stage is not Stage.COMPILING:
            self.queue.add(request)
            return
        assert request.guide is not None
        self.unready[request] = None
        compiling = request.guide.compiling
        alike = self._compiling.setdefault(compiling, {})
        alike[request] = None
        if len(alike) == 1:
            compiling.add_done_callback(self.compiled.append)

    def add_again(self, request: Request, yields: bool = False) -> None:
        """A request that was preempted. One that `yields` its slot to another client may wait as long as it takes."""
        self.preempted[request] = None if yields else AwakeWatch()
        self.queue.add(request)

    def admit(self, request: Request) -> bool:
        """The request got what it waited for; whether for the first time."""
        self.queue.remove(request)
        self.turns.admit(request)
        if _has_program(request):
            self.programs.admit(request)
        is_new = request not in self.preempted
        self.preempted.pop(request, None)
        return is_new

    def forget(self, request: Request) -> None:
        """The request ends, wherever it is."""
        if request.stage is Stage.COMPILING:
            self._stop_compiling(request)
        elif request.stage is Stage.QUEUED and request in self.queue:
            self.queue.remove(request)
        self.unready.pop(request, None)
        if _has_program(request):
            self.programs.forget(request)
        self.turns.forget(request)
        if request.queueing.deadline is not None:
            self.deadlines.forget(request)
        self.preempted.pop(request, None)

    def collect(self) -> Failures:
        """Queue the requests whose guide is compiled, and whose program has started; those that failed, and why."""
        failed: Failures = []
        while self.compiled:
            compiling = self.compiled.popleft()
            error = compiling.exception()
            for request in list(self._compiling.get(compiling, ())):
                assert request.guide is not None
                request.output.stats.note_guide_ready()  # where its own callback was not called yet
                if error is not None:
                    failed.append((request, error))
                    continue
                self._stop_compiling(request)
                request.guide.compiled = compiled = compiling.result()
                request.output.guide_notes = compiled.notes
                if isinstance(compiled, StartedGuide):
                    self.programs.add(request)
                else:
                    self._queue(request)
        if self.unready or self.programs.orphans:
            started, more = self.programs.collect()
            for request in started:
                self._queue(request)
            failed += more
        return failed

    def _queue(self, request: Request) -> None:
        del self.unready[request]
        request.move(Stage.QUEUED)
        self.queue.add(request)

    def _stop_compiling(self, request: Request) -> None:
        assert request.guide is not None
        compiling = request.guide.compiling
        alike = self._compiling.get(compiling)
        if alike is not None:
            alike.pop(request, None)
            if not alike:
                del self._compiling[compiling]

    def late(self) -> list[Request]:
        """Those whose time is up."""
        late = self.deadlines.late(time.perf_counter())
        clocks = self.preempted.items()
        idle = [
            request for request, waits in clocks if waits is not None and waits.seconds > self._max_idle_s
        ]
        return late + [request for request in idle if request not in late]


def _has_program(request: Request) -> bool:
    return request.guide is not None and isinstance(request.guide.compiled, StartedGuide)
