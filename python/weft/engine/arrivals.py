"""Who waits: for a guide to be compiled, or for a slot and pages; and whose time is up."""

from __future__ import annotations

import time
from collections.abc import Iterator

from weft.engine.deadlines import Deadlines
from weft.engine.lifecycle import Request, Stage
from weft.engine.scheduler import WaitingQueue


class Arrivals:
    """Requests without a slot, and the clocks of all. `max_idle_s`: how long one that was preempted may wait."""

    def __init__(self, max_idle_s: float) -> None:
        self._max_idle_s = max_idle_s
        self.compiling: list[Request] = []
        self.queue = WaitingQueue()
        self._timed = Deadlines()
        self._paused: dict[Request, None] = {}  # those that were preempted and wait

    def __len__(self) -> int:
        return len(self.queue) + len(self.compiling)

    def __iter__(self) -> Iterator[Request]:
        yield from self.queue
        yield from self.compiling

    @property
    def next_deadline(self) -> float | None:
        """The first moment, of `time.perf_counter`, at which some request must end; None without one."""
        return self._timed.first

    @property
    def has_compiled(self) -> bool:
        """Whether `collect` would find something."""
        return any(r.guide is not None and r.guide.done() for r in self.compiling)

    def add(self, request: Request) -> None:
        """A new request."""
        self._timed.add(request)
        if request.stage is Stage.COMPILING:
            self.compiling.append(request)
        else:
            self.queue.add(request)

    def add_again(self, request: Request) -> None:
        """A request that was preempted."""
        request.paused_at = time.perf_counter()
        self._paused[request] = None
        self.queue.add(request)

    def admit(self, request: Request) -> None:
        """The request got what it waited for."""
        self.queue.remove(request)
        self._paused.pop(request, None)

    def forget(self, request: Request) -> None:
        """The request ends, wherever it is."""
        if request.stage is Stage.COMPILING and request in self.compiling:
            self.compiling.remove(request)
        elif request.stage is Stage.QUEUED and request in self.queue:
            self.queue.remove(request)
        self._timed.forget(request)
        self._paused.pop(request, None)

    def collect(self) -> list[tuple[Request, BaseException]]:
        """Queue the requests whose guide is compiled; those whose guide failed, and why."""
        failed: list[tuple[Request, BaseException]] = []
        for request in [r for r in self.compiling if r.guide is not None and r.guide.done()]:
            assert request.guide is not None
            error = request.guide.exception()
            request.output.stats.compile_s = time.perf_counter() - request.created
            if error is not None:
                failed.append((request, error))
                continue
            request.compiled = request.guide.result()
            self.compiling.remove(request)
            request.move(Stage.QUEUED)
            self.queue.add(request)
        return failed

    def late(self) -> list[Request]:
        """Those whose time is up."""
        if not self._timed and not self._paused:
            return []
        now = time.perf_counter()
        late = self._timed.late(now)
        return late + [r for r in self._paused if r not in late and now - r.paused_at > self._max_idle_s]
