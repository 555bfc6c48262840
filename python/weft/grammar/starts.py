"""Matchers that take long to start and hold much memory, such as programs that read the prompt: separate threads
start them.

The engine's thread must not wait for them, and they must not start before a slot is near:
`engine/scheduler/programs.py` decides when. The sequences of one request get copies of one started matcher, which is
kept until the last of them has begun.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeGuard

from weft.errors import GuideError
from weft.grammar.base import NO_REQUEST, CompiledGuide, Matcher, Opening
from weft.grammar.guide import Guide


class OpensAhead(CompiledGuide, Protocol):
    """A compiled guide whose matchers take long to start."""

    opens_ahead: bool

    @property
    def sequence_bytes(self) -> int:
        """The most bytes that the matcher of one sequence may hold."""

    def open(self, opening: Opening) -> Matcher:
        """Start the matcher of a request's first sequence. Not called on the engine's thread. Raises `GuideError`."""


def opens_ahead(compiled: CompiledGuide) -> TypeGuard[OpensAhead]:
    """Whether the matchers of a guide must be started ahead of their first use."""
    return bool(getattr(compiled, "opens_ahead", False))


class StartedGuide:
    """A compiled guide for one request, whose sequences begin one after another."""

    memory_bytes = 0

    def __init__(self, compiled: OpensAhead, opening: Opening) -> None:
        self._compiled = compiled
        self._opening = opening
        self._first: Matcher | None = None

    @property
    def guide(self) -> Guide:
        return self._compiled.guide

    @property
    def backend(self) -> str | None:
        return self._compiled.backend

    @property
    def notes(self) -> tuple[str, ...]:
        return self._compiled.notes

    @property
    def vocab_size(self) -> int:
        """Bits of a mask row."""
        return self._compiled.vocab_size

    @property
    def sequence_bytes(self) -> int:
        """The most bytes that the matcher of one sequence may hold."""
        return self._compiled.sequence_bytes

    def begin(self, *, is_last: bool) -> Matcher:
        """The matcher of the next sequence. No copy is kept after the `is_last` one. Calls must not overlap."""
        first = self._first if self._first is not None else self._compiled.open(self._opening)
        self._first = None if is_last else first
        return first if is_last else first.fork()

    def drop(self) -> None:
        """No sequence is left to begin: release the kept matcher."""
        self._first = None

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A matcher that shares nothing with the request's other matchers."""
        return self._compiled.matcher(opening)


def for_request(compiled: Future[CompiledGuide], opening: Opening) -> Future[CompiledGuide]:
    """The compiled guide for the sequences of one request: a `StartedGuide` where its matchers take long to start,
    else the guide itself."""
    if compiled.done() and (compiled.exception() is not None or not opens_ahead(compiled.result())):
        return compiled
    for_sequences: Future[CompiledGuide] = Future()
    for_sequences.set_running_or_notify_cancel()

    def pass_on(done: Future[CompiledGuide]) -> None:
        error = done.exception()
        if error is not None:
            for_sequences.set_exception(error)
            return
        guide = done.result()
        for_sequences.set_result(StartedGuide(guide, opening) if opens_ahead(guide) else guide)

    compiled.add_done_callback(pass_on)
    return for_sequences


class Starts:
    """Starts matchers in at most `workers` threads (None: half the number of cores, at most 2, which leaves cores for
    decoding). Call `close` when done."""

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or max(1, min(2, (os.cpu_count() or 1) // 2))
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False

    def begin(self, start: Callable[[], Matcher]) -> Future[Matcher]:
        """The result of `start`, called on another thread; a `GuideError` after `close`."""
        with self._lock:
            if not self._is_closed:
                self._pool = self._pool or ThreadPoolExecutor(self._workers, "weft-start")
                return self._pool.submit(start)
        closed: Future[Matcher] = Future()
        closed.set_exception(GuideError("the engine was closed"))
        return closed

    def close(self) -> None:
        """Start no more matchers. Starts in progress are left to finish."""
        with self._lock:
            self._is_closed, pool, self._pool = True, self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
