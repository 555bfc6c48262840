"""Follows the deltas of requests in an event loop, without blocking it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import abc, deque
from collections.abc import Callable
from functools import partial
from typing import ClassVar
from weakref import WeakKeyDictionary, ref

from weft.client.response_queue import ResponseQueue
from weft.client.responses import Response, ResponseDelta
from weft.engine.sequence import Sequence
from weft.errors import ExecutorError

Came = list[tuple[Response, list[ResponseDelta]]]


class Wakes:
    """Runs functions on an event loop for other threads. Functions added before the loop runs them share one call into
    the loop."""

    _of: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Wakes]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # weak, or this value in `_of` would keep its key alive
        self._woken: deque[Callable[[], object]] = deque()
        self._is_called = False

    @classmethod
    def of_running_loop(cls) -> Wakes:
        """The instance of the running loop."""
        loop = asyncio.get_running_loop()
        wakes = cls._of.get(loop)
        if wakes is None:
            wakes = cls._of[loop] = cls(loop)
        return wakes

    def wake(self, function: Callable[[], object]) -> None:
        """Schedule `function` on the loop. Any thread may call this."""
        self._woken.append(function)
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
                loop = self._loop()
                if loop is not None:
                    loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_called = False  # before draining, so that a wake added after the last pop schedules again
        while self._woken:
            self._woken.popleft()()


class Following:
    """Follows several requests until they end. `next` returns the deltas since its last call.

    Two results are at least `pause_s()` seconds apart, unless a request ends. Call `close` when done or to stop early.
    It drops the requests from the queue, and passes the sequences of those that have not ended to `cancel`."""

    def __init__(
        self,
        queue: ResponseQueue,
        responses: abc.Sequence[Response],
        cancel: Callable[[abc.Sequence[Sequence]], object],
        pause_s: Callable[[], float] | None = None,
    ) -> None:
        self._queue, self._responses, self._cancel = queue, responses, cancel
        self._pause_s, self._is_paused = pause_s, False
        self._waiting = {response.id for response in responses}
        self._told = list(responses)
        self._woken, self._wakes = asyncio.Event(), Wakes.of_running_loop()
        for response in responses:
            response.listeners.append(self._listener)

    async def next(self) -> Came:
        """Wait for deltas and return them, by request; an empty list once all requests have ended. Raises
        `ExecutorError` if the queue has ended before a request has."""
        while self._waiting:
            if not (self._woken.is_set() or (self._told and not self._is_paused)):
                await self._woken.wait()
            self._woken.clear()
            if came := self._take():
                self._pause()
                return came
        return []

    def close(self) -> None:
        """Stop following; drop the requests, and cancel those that have not ended."""
        for response in self._responses:
            response.listeners.remove(self._listener)
        early = [response for response in self._responses if not response.is_over]
        for response in self._responses:
            self._queue.drop(response)  # does nothing if all its deltas were taken
        if early:
            with contextlib.suppress(ExecutorError):  # the thread has ended, which ended the requests
                self._cancel([sequence for response in early for sequence in response.sequences])

    def _take(self) -> Came:
        told, self._told = self._told, []
        came: Came = []
        for response in dict.fromkeys(told) if len(told) > 1 else told:
            if response.id not in self._waiting:
                continue
            deltas = self._queue.take_now(response)
            if deltas is None or (deltas and deltas[-1].is_final):
                self._waiting.discard(response.id)
            if deltas:
                came.append((response, deltas))
        return came

    def _pause(self) -> None:
        """Start a pause: `next` then waits, so that deltas accumulate for its next result."""
        if self._waiting and self._pause_s is not None and (pause_s := self._pause_s()):
            self._is_paused = True
            asyncio.get_running_loop().call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self._is_paused = False
        if self._told:
            self._woken.set()

    def _listener(self, response: Response) -> None:
        """Called on the engine's thread, or on the thread that drops the response."""
        self._wakes.wake(partial(self._tell, response))

    def _tell(self, response: Response) -> None:
        self._told.append(response)
        if response.is_over or not self._is_paused:
            self._woken.set()
