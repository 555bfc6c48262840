"""Worker threads for work that would block the event loop: one pool reads requests, another writes answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from weft.core.fair_queue import FairQueue

T = TypeVar("T")

READERS, WRITERS = 4, 2


class Workers:
    """A thread pool that reads bodies, and another that writes answers.

    They are separate because a hostile body may take a second to read, which must not delay answers. Both are small,
    because the work holds the GIL and more threads would not be faster.
    """

    def __init__(self) -> None:
        self.reading = ThreadPoolExecutor(READERS, "weft-reading")
        self.writing = ThreadPoolExecutor(WRITERS, "weft-writing")
        self._turns = Turns(self.reading, READERS)

    async def read(self, client: int, work: Callable[[], T]) -> T:
        """Run `work` on a reading thread and return its result. Waiting clients take turns."""
        return await self._turns.run(client, work)

    def close(self) -> None:
        """Shut down both pools. Queued work is dropped; running work finishes."""
        for pool in (self.reading, self.writing):
            pool.shutdown(wait=False, cancel_futures=True)


def on(pool: Executor, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` on a thread of `pool`. Returns a future of its result."""
    return asyncio.get_running_loop().run_in_executor(pool, work)


class Turns:
    """Shares `count` threads of a pool fairly between clients. A client with much work delays only itself. Use it
    only on the event loop."""

    def __init__(self, pool: Executor, count: int) -> None:
        self._pool, self._free = pool, count
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    async def run(self, client: int, work: Callable[[], T]) -> T:
        """Wait for the client's turn, run `work` on a thread, and return its result."""
        loop = asyncio.get_running_loop()
        if self._free:
            self._free -= 1
        else:
            turn = loop.create_future()
            self._waiting.add(client, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()  # the turn was already granted; pass it on
                raise
        try:
            working = self._pool.submit(work)
        except RuntimeError:  # the pool is shut down
            self._next()
            raise
        working.add_done_callback(lambda _: self._ended(loop))
        return await asyncio.wrap_future(working)

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no coroutine waits any more
            loop.call_soon_threadsafe(self._next)

    def _next(self) -> None:
        """Give the free thread to the client whose last turn is longest ago."""
        while self._waiting:
            client, turn = self._waiting.take()
            self._waiting.done(client)  # now already, so that clients alternate
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
