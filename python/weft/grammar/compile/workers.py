"""Threads that compile: clients in turn, each guide within its time.

A compile that outlives its time limit fails its own guide. A library can't be stopped, so its thread is left to finish
alone and another takes its place; while `max_abandoned` of them are at it, or half as many of one client, new guides
are refused.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from weft.core.awake import AwakeTimer, AwakeWatch
from weft.core.fair_queue import FairQueue
from weft.errors import UnavailableError
from weft.grammar.base import CompiledGuide
from weft.grammar.compile import stacks
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
    came_at: float = field(default_factory=time.monotonic)
    watch: AwakeWatch | None = None  # of its time
    waited_s: float | None = None  # of its time, when a library began with it in this process

    def begins(self) -> None:
        """A library begins with it in this process."""
        assert self.watch is not None
        self.waited_s = self.watch.seconds

    def stop_timer(self) -> None:
        """It is done, or does not begin; it can't be late."""
        if self.timer is not None:
            self.timer.cancel()


class Workers:
    """At most `count` threads, which start when there is work. `lock` is their owner's; it is held where a method does
    not say otherwise.

    `begin` is called for each job first, then its time begins and `work` is called, both without the lock; neither
    raises. A job that `begin` gave up has a result. `late` is called with the lock, for a job that is past its time and
    whose future is not done.
    """

    def __init__(
        self,
        lock: threading.Condition,
        limits: CompileLimits,
        count: int,
        *,
        begin: Callable[[Job], None],
        work: Callable[[Job], None],
        late: Callable[[Job], None],
    ) -> None:
        self.jobs: FairQueue[Job] = FairQueue(lambda job: len(job.guide.source))
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
            return UnavailableError(
                f"{self.num_abandoned} compiles are past their time limit; try again later"
            )
        if self.jobs.num_waiting(client) >= limits.max_waiting:
            return UnavailableError(
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
        while True:
            with self._lock:
                job = self._next(me)
            if job is None:
                return
            self._begin(job)
            if not job.future.done():
                self._start_timer(job, me)
                self._work(job)
            with self._lock:
                if me not in self._threads:
                    self.num_abandoned -= 1
                    self._abandoned[job.client] -= 1
                    return
                self.jobs.done(job.client)

    def _next(self, me: threading.Thread) -> Job | None:
        """The next job; None where there will be none."""
        self._idle += 1
        while not self.jobs and not self._is_closed:
            self._lock.wait()
        self._idle -= 1
        if not self.jobs:
            self._threads.discard(me)
            return None
        client, job = self.jobs.take()
        job.client = client
        return job

    def _start_timer(self, job: Job, thread: threading.Thread) -> None:
        job.watch = AwakeWatch()
        job.timer = AwakeTimer(self._limits.time_s, lambda: self._abandon(job, thread))
        job.timer.start()

    @contextmanager
    def waiting(self, job: Job) -> Iterator[None]:
        """While the job waits for what is not its own, on its thread: its time begins anew afterwards. Raises
        `UnavailableError` for one that was given up."""
        job.stop_timer()
        if job.future.done():
            raise UnavailableError("nobody waits for the guide any more")
        yield
        self._start_timer(job, threading.current_thread())

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
