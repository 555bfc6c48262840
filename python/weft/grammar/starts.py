"""Matchers that take long to begin and hold much, such as programs that read the prompt: separate threads begin them.

The engine's thread must not wait for them, and they must not begin before a slot is near:
`engine/scheduler/programs.py` says when. A request's sequences are copies of one start, so the first is kept until
the last has begun.
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
    """A compiled guide whose matchers take long to begin."""

    opens_ahead: bool

    @property
    def sequence_bytes(self) -> int:
        """What the matcher of one sequence may hold at most."""

    def open(self, opening: Opening) -> Matcher:
        """The matcher of a request's first sequence. Called beside the engine's thread. Raises `GuideError`."""


def opens_ahead(compiled: CompiledGuide) -> TypeGuard[OpensAhead]:
    """Whether a guide is to be opened ahead of its matchers' first use."""
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
        """What the matcher of one sequence may hold at most."""
        return self._compiled.sequence_bytes

    def begin(self, *, is_last: bool) -> Matcher:
        """The matcher of the next sequence; of the `is_last` one no copy is made. One call at a time."""
        first = self._first if self._first is not None else self._compiled.open(self._opening)
        self._first = None if is_last else first
        return first if is_last else first.fork()

    def drop(self) -> None:
        """No sequence is left to begin: keep nothing for one."""
        self._first = None

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """A matcher that shares nothing with the request's others."""
        return self._compiled.matcher(opening)


def for_request(compiled: Future[CompiledGuide], opening: Opening) -> Future[CompiledGuide]:
    """The compiled guide for the sequences of one request: the same, unless its matchers take long to begin; then a
    `StartedGuide`."""
    if compiled.done() and (compiled.exception() is not None or not opens_ahead(compiled.result())):
        return compiled
    found: Future[CompiledGuide] = Future()
    found.set_running_or_notify_cancel()

    def pass_on(done: Future[CompiledGuide]) -> None:
        error = done.exception()
        if error is not None:
            found.set_exception(error)
            return
        guide = done.result()
        found.set_result(StartedGuide(guide, opening) if opens_ahead(guide) else guide)

    compiled.add_done_callback(pass_on)
    return found


class Starts:
    """Begins matchers in at most `workers` threads (None: half as many as there are cores, 2 at most: those who decode
    have the others). `close` when done."""

    def __init__(self, workers: int | None = None) -> None:
        self._workers = workers or max(1, min(2, (os.cpu_count() or 1) // 2))
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False

    def begin(self, start: Callable[[], Matcher]) -> Future[Matcher]:
        """What `start` gives or raises; a `GuideError` where this was closed before."""
        with self._lock:
            if not self._is_closed:
                self._pool = self._pool or ThreadPoolExecutor(self._workers, "weft-start")
                return self._pool.submit(start)
        closed: Future[Matcher] = Future()
        closed.set_exception(GuideError("the engine was closed"))
        return closed

    def close(self) -> None:
        """Begin no more. What is under way is left to end."""
        with self._lock:
            self._is_closed, pool, self._pool = True, self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
