"""Threads beside the event loop: some that read requests, and others that write answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

READERS, WRITERS = 4, 2


class Workers:
    """Two pools, since reading a strange body may take a second: many of these do not keep answers from being written.
    Both are small: the work holds the interpreter, so more threads would do no more of it."""

    def __init__(self) -> None:
        self.reading = ThreadPoolExecutor(READERS, "weft-reading")
        self.writing = ThreadPoolExecutor(WRITERS, "weft-writing")

    def close(self) -> None:
        """Begin no more."""
        for pool in (self.reading, self.writing):
            pool.shutdown(wait=False, cancel_futures=True)


def on(pool: Executor, work: Callable[[], T]) -> asyncio.Future[T]:
    """What `work` gives, once a thread of a pool has done it."""
    return asyncio.get_running_loop().run_in_executor(pool, work)
