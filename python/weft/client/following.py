"""The deltas of requests as they come, without blocking an event loop."""

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
    """Wakes tasks of one event loop from other threads: however many an engine's step has news for, the loop is called
    once."""

    _of: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, Wakes]] = WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # which holds the wakes, by the table
        self._woken: deque[Callable[[], object]] = deque()
        self._is_called = False

    @classmethod
    def of_running_loop(cls) -> Wakes:
        """Those of the loop that runs."""
        loop = asyncio.get_running_loop()
        wakes = cls._of.get(loop)
        if wakes is None:
            wakes = cls._of[loop] = cls(loop)
        return wakes

    def wake(self, function: Callable[[], object]) -> None:
        """Let the loop call `function` soon. On any thread."""
        self._woken.append(function)
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
                loop = self._loop()
                if loop is not None:
                    loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_called = False  # first: who comes after the last one here calls again
        while self._woken:
            self._woken.popleft()()


class Following:
    """Some requests, followed to the end of each: `next` gives what came of them since the last time. But for a
    request's end it pauses `pause_s()` seconds between two times. `close` when done, or when nobody wants more:
    requests that have not ended are dropped from the queue, and their sequences given to `cancel`."""

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
        """What came, once something did; nothing when all have ended."""
        while self._waiting:
            if not (self._woken.is_set() or (self._told and not self._is_paused)):
                await self._woken.wait()
            self._woken.clear()
            if came := self._take():
                self._pause()
                return came
        return []

    def close(self) -> None:
        """Let go of the requests."""
        for response in self._responses:
            response.listeners.remove(self._listener)
        early = [response for response in self._responses if not response.is_over]
        for response in self._responses:
            self._queue.drop(response)  # where all was taken it is gone already
        if early:
            with contextlib.suppress(ExecutorError):  # they ended by themselves
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
        """Let what comes next gather for a while."""
        if self._waiting and self._pause_s is not None and (pause_s := self._pause_s()):
            self._is_paused = True
            asyncio.get_running_loop().call_later(pause_s, self._resume)

    def _resume(self) -> None:
        self._is_paused = False
        if self._told:
            self._woken.set()

    def _listener(self, response: Response) -> None:
        """On the engine's thread."""
        self._wakes.wake(partial(self._tell, response))

    def _tell(self, response: Response) -> None:
        self._told.append(response)
        if response.is_over or not self._is_paused:
            self._woken.set()
