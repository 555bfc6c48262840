"""Threads that compile: clients in turn, each guide within its time.

A compile that outlives its time limit fails its own guide. A library can't be stopped, so its thread is left to finish
alone and another takes its place; while `max_abandoned` of them are at it, or half as many of one client, new guides
are refused.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass

from weft.awake import AwakeTimer
from weft.errors import CapacityError, GuideError
from weft.grammar.base import CompiledGuide
from weft.grammar.compile import stacks
from weft.grammar.compile.turns import Turns
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits


@dataclass(eq=False)
class Job:
    """A guide to compile, or, where it is `compiled`, one whose ends are to be worked out."""

    guide: Guide
    future: Future[CompiledGuide]
    compiled: CompiledGuide | None = None
    timer: AwakeTimer | None = None
    client: Hashable = None  # in whose turn it came
    measured_bytes: int = 0  # that its trial found it to hold

    def stop_timer(self) -> None:
        """It is done; it can't be late."""
        assert self.timer is not None
        self.timer.cancel()


class Workers:
    """At most `count` threads, which start when there is work. `lock` is their owner's; it is held where a method does
    not say otherwise.

    `begin` is called by each thread first, `work` for each job, both without the lock; `late`, with it, for a job that
    is past its time and whose future is not done.
    """

    def __init__(
        self,
        lock: threading.Condition,
        limits: CompileLimits,
        count: int,
        *,
        begin: Callable[[], None],
        work: Callable[[Job], None],
        late: Callable[[Job], None],
    ) -> None:
        self.jobs: Turns[Job] = Turns(lambda job: len(job.guide.source))
        self.num_abandoned = 0
        self._lock, self._limits, self._count = lock, limits, count
        self._begin, self._work, self._late = begin, work, late
        self._abandoned: Counter[Hashable] = Counter()  # by client
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._is_closed = False

    def add(self, job: Job, client: Hashable) -> None:
        """Put a job in a client's line."""
        self.jobs.add(client, job)
        if self._idle < len(self.jobs) and len(self._threads) < self._count:
            self._start()
        self._lock.notify()

    def too_much(self, client: Hashable) -> Exception | None:
        """Why a client's guides must wait outside."""
        own, limits = self._abandoned[client], self._limits
        if self.num_abandoned >= limits.max_abandoned or own >= max(1, limits.max_abandoned // 2):
            return GuideError(f"{self.num_abandoned} compiles are past their time limit; try again later")
        if self.jobs.num_waiting(client) >= limits.max_waiting:
            return CapacityError(
                f"{limits.max_waiting} guides of this client wait to be compiled already "
                "(CompileLimits.max_waiting); send this one again later"
            )
        return None

    def close(self) -> list[Job]:
        """Begin no more jobs; those that were waiting."""
        self._is_closed = True
        self._lock.notify_all()
        return self.jobs.clear()

    def join(self) -> None:
        """Wait for the threads, a second each at most: a compile at work is left to finish alone. Without the lock."""
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():  # a collection there may drop the owner
                thread.join(timeout=1.0)

    def _start(self) -> None:
        # A daemon: a compile that can't be stopped must not hold up the end of the program.
        thread = threading.Thread(target=self._run, name="weft-compile", daemon=True)
        self._threads.add(thread)
        stacks.start(thread, stacks.COMPILE_BYTES)

    def _run(self) -> None:
        me = threading.current_thread()
        self._begin()
        while True:
            with self._lock:
                job = self._next(me)
            if job is None:
                return
            self._work(job)
            with self._lock:
                if me not in self._threads:
                    self.num_abandoned -= 1
                    self._abandoned[job.client] -= 1
                    return
                self.jobs.done(job.client)

    def _next(self, me: threading.Thread) -> Job | None:
        """The next job, whose time begins; None where there will be none."""
        self._idle += 1
        while not self.jobs and not self._is_closed:
            self._lock.wait()
        self._idle -= 1
        if not self.jobs:
            self._threads.discard(me)
            return None
        client, job = self.jobs.take()
        job.client = client
        job.timer = AwakeTimer(self._limits.time_s, lambda: self._abandon(job, me))
        job.timer.start()
        return job

    def _abandon(self, job: Job, thread: threading.Thread) -> None:
        with self._lock:
            if job.future.done():
                return
            self._threads.discard(thread)
            self.num_abandoned += 1
            self._abandoned[job.client] += 1
            self.jobs.done(job.client)
            if self.jobs and not self._is_closed:
                self._start()
            self._late(job)
