"""Starts matchers that start slowly and hold much memory (WebAssembly programs), shortly before their sequences get
slots.

A sequence is ahead if its matcher has started, or is starting, and it has no slot yet. At most `max_ahead` sequences
are ahead, and all live matchers together may hold at most `max_bytes`. If clients share the slots, each client without
a sequence ahead may have one beyond that limit, since it may get a slot before other clients do. Matchers start in the
order of the queue.

A request with several sequences starts its program once. Its matchers are copies of that start, which is kept until the
last of them has started. The kept copy counts as one more matcher.

Memory can't deadlock. The first of several siblings (sequences of one request) starts only if there is room for it and
for the kept copy. So the sequences of the youngest request can always run one by one. While the first waiting sequence
does not fit, only siblings with a kept copy may start before it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from weft.engine.scheduler.policy import FairTurns, WaitingQueue
from weft.engine.sequence import Sequence
from weft.errors import CapacityError, GuideError
from weft.grammar.base import Matcher
from weft.grammar.starts import StartedGuide

MAX_PASSED = 256
"""The largest number of waiting sequences that a step skips in its search for one that can start, while others hold
memory."""

Failures = list[tuple[Sequence, BaseException]]


class StartThreads:
    """Runs starts on at most `workers` threads. The default is half the number of cores, at most 2, to leave cores for
    decoding. Call `close` when done."""

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or max(1, min(2, (os.cpu_count() or 1) // 2))
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False

    def begin(self, start: Callable[[], Matcher]) -> Future[Matcher]:
        """Run `start()` on a thread and return its future. After `close`, the future fails with `GuideError`."""
        with self._lock:
            if not self._is_closed:
                self._pool = self._pool or ThreadPoolExecutor(self._workers, "weft-start")
                return self._pool.submit(start)
        closed: Future[Matcher] = Future()
        closed.set_exception(GuideError("the engine was closed"))
        return closed

    def close(self) -> None:
        """Cancel starts that wait for a thread, and refuse new ones. Running starts finish on their own."""
        with self._lock:
            self._is_closed, pool, self._pool = True, self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


@dataclass(eq=False)
class _Siblings:
    """The sequences of one request that have not started, and the bytes of the copy kept for them. Only one of them
    starts at a time."""

    guide: StartedGuide
    waiting: dict[Sequence, None] = field(default_factory=dict)
    kept_bytes: int = 0
    is_starting: bool = False


@dataclass(frozen=True, eq=False)
class _Orphan:
    """A running start whose sequence has ended. It can't be stopped, and its bytes count until it is over."""

    siblings: _Siblings
    started: Future[Matcher]
    num_bytes: int


class MatcherStarts:
    """Starts the matchers of sequences with a `StartedGuide`, before they get slots.

    The engine's thread calls all methods. The start threads call `on_started`, which wakes the engine. `turns` orders
    the queue. `orphans` are running starts whose sequences have ended.
    """

    def __init__(
        self,
        threads: StartThreads,
        max_ahead: int,
        max_bytes: int,
        turns: FairTurns,
        shares_slots: bool = False,
    ) -> None:
        self.held_bytes = 0
        self.on_started: Callable[[], object] = lambda: None
        self.orphans: list[_Orphan] = []
        self._threads, self._max_ahead, self._max_bytes = threads, max_ahead, max_bytes
        self._shares_slots = shares_slots
        self._waiting = WaitingQueue(turns)
        self._siblings: dict[StartedGuide, _Siblings] = {}
        self._starting: dict[Sequence, Future[Matcher]] = {}
        self._ahead: set[Sequence] = set()  # started or starting, without a slot
        self._held: dict[Sequence, int] = {}  # bytes of each sequence that is started or starting
        self._has_changed = False  # since the last `collect`, another sequence may fit

    def __len__(self) -> int:
        """The number of sequences that have not started."""
        return len(self._waiting) + len(self._starting)

    @property
    def has_news(self) -> bool:
        """Whether `collect` might change something."""
        return (
            (self._has_changed and len(self._waiting) > 0)
            or any(started.done() for started in self._starting.values())
            or any(orphan.started.done() for orphan in self.orphans)
        )

    def add(self, sequence: Sequence) -> None:
        """Add a sequence whose guide is a `StartedGuide`. Its siblings must be added before the next `collect`."""
        self._waiting.add(sequence)
        guide = _guide(sequence)
        self._siblings.setdefault(guide, _Siblings(guide)).waiting[sequence] = None
        self._has_changed = True

    def collect(self) -> tuple[list[Sequence], Failures]:
        """Begin the starts that fit. Returns the sequences whose starts are done, and those that failed with their
        errors."""
        ready, failed = self._take_started()
        failed += self._start()
        return ready, failed

    def admit(self, sequence: Sequence) -> None:
        """Note that a sequence got a slot, so it is no longer ahead."""
        if sequence in self._ahead:
            self._ahead.remove(sequence)
            self._has_changed = True

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that has ended, in any stage."""
        compiled = sequence.guide.compiled if sequence.guide is not None else None
        if not isinstance(compiled, StartedGuide):
            return
        siblings = self._siblings.get(compiled)
        num_bytes = self._held.pop(sequence, 0)
        self.held_bytes -= num_bytes
        self._ahead.discard(sequence)
        self._has_changed = True
        if siblings is None:
            return
        if sequence in siblings.waiting:
            self._waiting.remove(sequence)
            del siblings.waiting[sequence]
        started = self._starting.pop(sequence, None)
        if started is not None:
            if started.cancel():
                siblings.is_starting = False
            else:
                self.orphans.append(_Orphan(siblings, started, num_bytes))
                self.held_bytes += num_bytes
        self._settle(siblings)

    def close(self) -> None:
        """Refuse new starts (`StartThreads.close`)."""
        self._threads.close()

    def _take_started(self) -> tuple[list[Sequence], Failures]:
        ready: list[Sequence] = []
        failed: Failures = []
        for orphan in [orphan for orphan in self.orphans if orphan.started.done()]:
            self.orphans.remove(orphan)
            self.held_bytes -= orphan.num_bytes
            self._end_start(orphan.siblings)
        for sequence in [sequence for sequence, started in self._starting.items() if started.done()]:
            started = self._starting.pop(sequence)
            self._end_start(self._siblings[_guide(sequence)])
            error = started.exception()
            if error is not None:
                failed.append((sequence, error))
                continue
            assert sequence.guide is not None
            sequence.guide.matcher = started.result()
            ready.append(sequence)
        return ready, failed

    def _start(self) -> Failures:
        """Begin the starts that fit. Returns the sequences whose matchers can never fit, with their errors."""
        if not self._has_changed or not len(self._waiting):
            return []
        self._has_changed = False
        chosen, failed = self._reserve()
        for sequence, is_last in chosen:  # not in `_reserve`: the queue must not change during its iteration
            self._waiting.remove(sequence)
            del self._siblings[_guide(sequence)].waiting[sequence]
            started = self._threads.begin(partial(_guide(sequence).begin, is_last=is_last))
            self._starting[sequence] = started
            started.add_done_callback(self._note_started)
        return failed

    def _reserve(self) -> tuple[list[tuple[Sequence, bool]], Failures]:
        """Choose the waiting sequences that start now, and reserve their bytes. Returns them, each with whether it is
        the last of its siblings, and the sequences whose matchers can never fit.

        For example, a request has two sequences of 30 bytes each. The first reserves 60: its own, and those of the copy
        that is kept for the second. The second reserves no more: it takes over the bytes of the copy, which is then not
        kept any longer. So a second sibling always fits.
        """
        chosen: list[tuple[Sequence, bool]] = []
        failed: Failures = []
        first_fits, num_passed = True, 0
        clients_ahead = {s.request.client_id for s in self._ahead} if self._shares_slots else set()
        for sequence in self._waiting:
            is_full = len(self._ahead) >= self._max_ahead
            if is_full and not self._shares_slots:
                break
            # With nothing held, look at the whole queue: no sequence will end and lead to another look.
            if num_passed >= MAX_PASSED and self._held:
                break
            client, siblings = sequence.request.client_id, self._siblings[_guide(sequence)]
            # Each client may have one sequence ahead beyond the limit.
            if (is_full and client in clients_ahead) or siblings.is_starting:
                num_passed += 1
                continue
            num_bytes, kept_bytes = self._needs(sequence, siblings)
            if num_bytes + kept_bytes > self._max_bytes:
                failed.append((sequence, self._too_large(sequence, num_bytes + kept_bytes)))
                continue
            more_bytes = num_bytes + kept_bytes - siblings.kept_bytes
            has_copy = siblings.kept_bytes > 0
            # Later sequences must not take the memory that the first one waits for, except for siblings with a kept
            # copy: only their starts free it again.
            if self.held_bytes + more_bytes > self._max_bytes or not (first_fits or has_copy):
                first_fits, num_passed = False, num_passed + 1
                continue
            self.held_bytes += more_bytes
            self._held[sequence] = num_bytes
            siblings.kept_bytes, siblings.is_starting = kept_bytes, True
            self._ahead.add(sequence)
            clients_ahead.add(client)
            is_last = kept_bytes == 0  # a copy is kept as long as siblings follow
            chosen.append((sequence, is_last))
        return chosen, failed

    def _needs(self, sequence: Sequence, siblings: _Siblings) -> tuple[int, int]:
        """The bytes that a sequence may hold once it starts, and the bytes of the copy that is then kept for its
        siblings."""
        each = _guide(sequence).sequence_bytes
        # A beam search needs room for one more matcher than beams: a fork is made before the matcher that it replaces
        # is freed.
        own_bytes = each * (sequence.request.beam.width + 1 if sequence.request.beam is not None else 1)
        return own_bytes, each if len(siblings.waiting) > 1 else 0

    def _end_start(self, siblings: _Siblings) -> None:
        siblings.is_starting = False
        self._has_changed = True
        self._settle(siblings)

    def _settle(self, siblings: _Siblings) -> None:
        """Drop the kept copy if no sibling is left to start."""
        if not siblings.waiting and not siblings.is_starting:
            siblings.guide.release()
            self.held_bytes -= siblings.kept_bytes
            del self._siblings[siblings.guide]

    def _note_started(self, _: object) -> None:
        self.on_started()

    def _too_large(self, sequence: Sequence, num_bytes: int) -> CapacityError:
        settings, names = _guide(sequence).memory_settings, sequence.request.names
        return CapacityError(
            f"the request's matcher may hold {num_bytes} bytes, with copies and what is kept to roll tokens back, but "
            f"max_program_bytes is {self._max_bytes}; lower {settings}{names.or_raise('max_program_bytes')}"
        )


def _guide(sequence: Sequence) -> StartedGuide:
    assert sequence.guide is not None and isinstance(sequence.guide.compiled, StartedGuide)
    return sequence.guide.compiled
