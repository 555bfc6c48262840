"""Worker threads beside the event loop: some read requests, others write answers."""

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
    """A pool of threads that read bodies, and one of threads that write answers.

    They are apart because a hostile body may take a second to read, which must not delay answers. Both are small: the
    work holds the interpreter lock, so that more threads would not do more of it.
    """

    def __init__(self) -> None:
        self.reading = ThreadPoolExecutor(READERS, "weft-reading")
        self.writing = ThreadPoolExecutor(WRITERS, "weft-writing")
        self._turns = Turns(self.reading, READERS)

    async def read(self, client: int, work: Callable[[], T]) -> T:
        """The result of `work`, done on a reading thread. Waiting clients take turns."""
        return await self._turns.run(client, work)

    def close(self) -> None:
        """Start no more work."""
        for pool in (self.reading, self.writing):
            pool.shutdown(wait=False, cancel_futures=True)


def on(pool: Executor, work: Callable[[], T]) -> asyncio.Future[T]:
    """The result of `work`, done on a thread of `pool`."""
    return asyncio.get_running_loop().run_in_executor(pool, work)


class Turns:
    """Work of several clients on `count` threads of a pool: one that asks for much waits for itself. Used on the event
    loop alone."""

    def __init__(self, pool: Executor, count: int) -> None:
        self._pool, self._free = pool, count
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    async def run(self, client: int, work: Callable[[], T]) -> T:
        """What `work` gives, on a thread, when it is the client's turn."""
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
                    self._next()  # it came, and nobody uses it
                raise
        try:
            working = self._pool.submit(work)
        except RuntimeError:  # the pool has ended
            self._next()
            raise
        working.add_done_callback(lambda _: self._ended(loop))
        return await asyncio.wrap_future(working)

    def _ended(self, loop: asyncio.AbstractEventLoop) -> None:
        with suppress(RuntimeError):  # the loop has ended, and everybody with it
            loop.call_soon_threadsafe(self._next)

    def _next(self) -> None:
        """Give a thread that is free to the client that has waited longest for a turn."""
        while self._waiting:
            client, turn = self._waiting.take()
            self._waiting.done(client)  # clients alternate here, however many threads each has
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
