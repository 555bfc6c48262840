"""Who waits: for a guide to be compiled, for a program to start, or for a slot and pages; and whose time is up."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future

from weft.engine.request import Request, Stage
from weft.engine.scheduling.deadlines import Deadlines
from weft.engine.scheduling.policy import Turns, WaitingQueue
from weft.engine.scheduling.programs import Failures, Programs
from weft.grammar.base import CompiledGuide
from weft.grammar.starts import StartedGuide


class Arrivals:
    """Requests without a slot, and the clocks of all. `max_idle_s`: how long one that was preempted may wait."""

    def __init__(self, max_idle_s: float, programs: Programs) -> None:
        self._max_idle_s = max_idle_s
        self.programs = programs
        self.queue = WaitingQueue()
        self._turns = Turns()
        self._compiling: dict[Future[CompiledGuide], dict[Request, None]] = {}
        self._compiled: deque[Future[CompiledGuide]] = deque()  # other threads add to it
        self._timed = Deadlines()
        self._paused: dict[Request, None] = {}  # those that were preempted and wait

    def __len__(self) -> int:
        return len(self.queue) + self.num_compiling

    def __iter__(self) -> Iterator[Request]:
        yield from self.queue
        for requests in self._compiling.values():
            yield from requests
        yield from self.programs

    @property
    def num_compiling(self) -> int:
        """How many wait for their guide, or for its program."""
        return sum(map(len, self._compiling.values())) + len(self.programs)

    @property
    def next_deadline(self) -> float | None:
        """The first moment, of `time.perf_counter`, at which some request must end; None without one."""
        return self._timed.first

    @property
    def has_compiled(self) -> bool:
        """Whether `collect` would find something."""
        return bool(self._compiled) or self.programs.has_news

    def add(self, request: Request) -> None:
        """A new request."""
        self._timed.add(request)
        self._turns.take(request)
        if request.stage is not Stage.COMPILING:
            self.queue.add(request)
            return
        assert request.guide is not None
        alike = self._compiling.setdefault(request.guide, {})
        alike[request] = None
        if len(alike) == 1:
            request.guide.add_done_callback(self._compiled.append)

    def add_again(self, request: Request) -> None:
        """A request that was preempted."""
        request.paused_at = time.perf_counter()
        self._paused[request] = None
        self.queue.add(request)

    def admit(self, request: Request) -> None:
        """The request got what it waited for."""
        self.queue.remove(request)
        self._paused.pop(request, None)
        self._turns.admit(request)
        self.programs.admit(request)

    def forget(self, request: Request) -> None:
        """The request ends, wherever it is."""
        if request.stage is Stage.COMPILING:
            self._stop_compiling(request)
        elif request.stage is Stage.QUEUED and request in self.queue:
            self.queue.remove(request)
        self.programs.forget(request)
        self._turns.forget(request)
        self._timed.forget(request)
        self._paused.pop(request, None)

    def collect(self) -> Failures:
        """Queue the requests whose guide is compiled, and whose program has started; those that failed, and why."""
        failed: Failures = []
        while self._compiled:
            guide = self._compiled.popleft()
            error = guide.exception()
            for request in list(self._compiling.get(guide, ())):
                request.output.stats.note_guide_ready()  # where its own callback was not called yet
                if error is not None:
                    failed.append((request, error))
                    continue
                self._stop_compiling(request)
                request.compiled = guide.result()
                request.output.guide_notes = request.compiled.notes
                if isinstance(request.compiled, StartedGuide):
                    self.programs.add(request)
                else:
                    self._queue(request)
        if len(self.programs):
            started, more = self.programs.collect()
            for request in started:
                self._queue(request)
            failed += more
        return failed

    def _queue(self, request: Request) -> None:
        request.move(Stage.QUEUED)
        self.queue.add(request)

    def _stop_compiling(self, request: Request) -> None:
        alike = self._compiling.get(request.guide) if request.guide is not None else None
        if alike is not None:
            alike.pop(request, None)
            if not alike:
                del self._compiling[request.guide]  # type: ignore[arg-type]

    def late(self) -> list[Request]:
        """Those whose time is up."""
        if not self._timed and not self._paused:
            return []
        now = time.perf_counter()
        late = self._timed.late(now)
        return late + [r for r in self._paused if r not in late and now - r.paused_at > self._max_idle_s]
