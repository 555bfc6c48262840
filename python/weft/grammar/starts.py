"""Matchers that take long to begin, such as programs that read the prompt: begun ahead, by threads of their own.

The engine's thread must not wait for them. A request with such a guide waits as if its guide were still compiled, until
its matchers have begun, and what they raise is the request's error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeGuard

from weft.errors import GuideError
from weft.grammar.base import NO_REQUEST, CompiledGuide, Matcher, Opening
from weft.grammar.guide import Guide


class OpensAhead(CompiledGuide, Protocol):
    """A compiled guide whose matchers take long to begin."""

    opens_ahead: bool

    def open(self, opening: Opening, count: int) -> list[Matcher]:
        """Matchers for the `count` sequences of one request. Called beside the engine's thread. Raises `GuideError`."""


def opens_ahead(compiled: CompiledGuide) -> TypeGuard[OpensAhead]:
    """Whether a guide is to be opened ahead of its matchers' first use."""
    return bool(getattr(compiled, "opens_ahead", False))


class OpenedGuide:
    """A compiled guide for one request, with its matchers at hand."""

    memory_bytes = 0

    def __init__(self, compiled: CompiledGuide, matchers: Sequence[Matcher]) -> None:
        self._compiled = compiled
        self._matchers = deque(matchers)

    @property
    def guide(self) -> Guide:
        return self._compiled.guide

    @property
    def backend(self) -> str | None:
        return self._compiled.backend

    @property
    def vocab_size(self) -> int:
        """Bits of a mask row."""
        return self._compiled.vocab_size

    def matcher(self, opening: Opening = NO_REQUEST) -> Matcher:
        """The next of those that have begun."""
        return self._matchers.popleft() if self._matchers else self._compiled.matcher(opening)


class Starts:
    """Opens guides ahead, in at most `workers` threads. `close` when done."""

    def __init__(self, workers: int = 2) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._is_closed = False

    def open(
        self, compiled: Future[CompiledGuide], opening: Opening, count: int = 1
    ) -> Future[CompiledGuide]:
        """The compiled guide for the `count` sequences of one request: the same, unless its matchers take long to
        begin."""
        if compiled.done() and (compiled.exception() is not None or not opens_ahead(compiled.result())):
            return compiled
        opened: Future[CompiledGuide] = Future()
        opened.set_running_or_notify_cancel()
        compiled.add_done_callback(lambda done: self._pass_on(done, opened, opening, count))
        return opened

    def close(self) -> None:
        """Begin no more. What has begun is left to end."""
        with self._lock:
            self._is_closed, pool, self._pool = True, self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    def _pass_on(
        self,
        compiled: Future[CompiledGuide],
        opened: Future[CompiledGuide],
        opening: Opening,
        count: int,
    ) -> None:
        error = compiled.exception()
        if error is not None:
            opened.set_exception(error)
            return
        guide = compiled.result()
        if not opens_ahead(guide):
            opened.set_result(guide)
            return
        with self._lock:
            if not self._is_closed:
                self._pool = self._pool or ThreadPoolExecutor(self._workers, "weft-start")
                self._pool.submit(self._open, guide, opened, opening, count)
                return
        opened.set_exception(GuideError("the compiler was closed"))

    def _open(
        self, compiled: OpensAhead, opened: Future[CompiledGuide], opening: Opening, count: int
    ) -> None:
        if self._is_closed:
            opened.set_exception(GuideError("the compiler was closed"))
            return
        try:
            opened.set_result(OpenedGuide(compiled, compiled.open(opening, count)))
        except Exception as error:
            opened.set_exception(error)
