"""The compile threads: they serve clients in turn, with a time limit for each guide.

A call into a grammar library can't be interrupted. If a compile exceeds its time limit, its guide fails. The thread is
abandoned: it runs on until the compile ends, and a new thread takes its place when a guide waits. While `max_abandoned`
threads are abandoned, all new guides are refused. While half as many are abandoned for one client, its guides are.
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

JOIN_S = 0.5


@dataclass(eq=False)
class Job:
    """A guide to compile. With `compiled` the guide is compiled already, and its shortest endings are to be
    computed."""

    guide: Guide
    future: Future[CompiledGuide]
    compiled: CompiledGuide | None = None
    client: Hashable = None
    """The client from whose queue the job was taken."""
    measured_bytes: int = 0
    """The memory of the compiled guide as its trial measured it."""
    submitted_at: float = field(default_factory=time.monotonic)
    watch: AwakeWatch | None = None
    """Measures the job's time."""
    timer: AwakeTimer | None = None
    """Abandons the job at its time limit."""
    library_started_s: float | None = None
    """The reading of `watch` when the job entered a library in this process, after its trial."""

    def library_starts(self) -> None:
        """Record that the job now enters a library in this process."""
        assert self.watch is not None
        self.library_started_s = self.watch.seconds

    def stop_timer(self) -> None:
        """Cancel the timer, so that the job can't time out any more."""
        if self.timer is not None:
            self.timer.cancel()


class Workers:
    """A pool of at most `count` threads, started on demand. The caller must hold the owner's `lock`, unless a method's
    docstring says otherwise.

    For each job a thread calls `prepare(job)` and then, with the job's timer running, `work(job)`. Both are called
    without the lock and must not raise. If `prepare` sets the job's future, `work` is skipped. If a job exceeds its
    time and its future is not done, `time_out(job)` is called with the lock.
    """

    def __init__(
        self,
        lock: threading.Condition,
        limits: CompileLimits,
        count: int,
        *,
        prepare: Callable[[Job], None],
        work: Callable[[Job], None],
        time_out: Callable[[Job], None],
    ) -> None:
        self.jobs: FairQueue[Job] = FairQueue(lambda job: len(job.guide.source))
        self.num_abandoned = 0
        self._lock, self._limits, self._count = lock, limits, count
        self._prepare, self._work, self._time_out = prepare, work, time_out
        self._abandoned: Counter[Hashable] = Counter()  # abandoned threads by client
        self._threads: set[threading.Thread] = set()  # without the abandoned ones
        self._num_idle = 0
        self._is_closed = False

    def add(self, job: Job, client: Hashable) -> None:
        """Queue a job for a client."""
        self.jobs.add(client, job)
        if self._num_idle < len(self.jobs) and len(self._threads) < self._count:
            self._start_thread()
        self._lock.notify()

    def refusal(self, client: Hashable) -> Exception | None:
        """Return the error for a client whose guides can't be queued now, or None."""
        abandoned, limits = self._abandoned[client], self._limits
        if self.num_abandoned >= limits.max_abandoned or abandoned >= max(1, limits.max_abandoned // 2):
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
        """Start no more jobs. Returns those that were waiting."""
        self._is_closed = True
        self._lock.notify_all()
        return self.jobs.clear()

    def join(self) -> None:
        """Wait at most half a second for all threads, since a running compile can't be stopped. Call it without the
        lock."""
        with self._lock:
            threads = list(self._threads)
        until = time.monotonic() + JOIN_S
        for thread in threads:
            # A garbage collection on a worker thread may close the owner, and a thread can't join itself.
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))

    def _start_thread(self) -> None:
        # A daemon thread, because a compile that can't be stopped must not delay the exit of the program.
        thread = threading.Thread(target=self._run, name="weft-compile", daemon=True)
        self._threads.add(thread)
        stacks.start(thread, stacks.COMPILE_BYTES)

    def _run(self) -> None:
        thread = threading.current_thread()
        while True:
            with self._lock:
                job = self._next_job(thread)
            if job is None:
                return
            self._prepare(job)
            if not job.future.done():
                self._start_timer(job, thread)
                self._work(job)
            with self._lock:
                if thread not in self._threads:
                    # The timer abandoned this thread during the job, and another may take its place, so this one ends.
                    self.num_abandoned -= 1
                    self._abandoned[job.client] -= 1
                    return
                self.jobs.done(job.client)

    def _next_job(self, thread: threading.Thread) -> Job | None:
        """Wait for the next job; None after `close`."""
        self._num_idle += 1
        while not self.jobs and not self._is_closed:
            self._lock.wait()
        self._num_idle -= 1
        if not self.jobs:
            self._threads.discard(thread)
            return None
        job_client, job = self.jobs.take()
        job.client = job_client
        return job

    def _start_timer(self, job: Job, thread: threading.Thread) -> None:
        job.watch = AwakeWatch()
        job.timer = AwakeTimer(self._limits.time_s, lambda: self._abandon(job, thread))
        job.timer.start()

    @contextmanager
    def waiting(self, job: Job) -> Iterator[None]:
        """A context for waits that must not count as the job's time. After the wait that time starts over. Raises
        `UnavailableError` if the job has timed out. Call it without the lock, on the job's thread."""
        job.stop_timer()
        # Race: the timer may have fired just before it was cancelled.
        if job.future.done():
            raise UnavailableError("the guide's time is over; its compile was given up")
        yield
        self._start_timer(job, threading.current_thread())

    def _abandon(self, job: Job, thread: threading.Thread) -> None:
        """Give up a job at its time limit, and abandon its thread. A new thread starts if jobs wait. The timer calls
        it, without the lock."""
        with self._lock:
            if job.future.done():
                return
            self._threads.discard(thread)
            self.num_abandoned += 1
            self._abandoned[job.client] += 1
            self.jobs.done(job.client)
            if self.jobs and not self._is_closed:
                self._start_thread()
            self._time_out(job)
