"""The deltas of one request as they come, without blocking an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial

from weft.client.handles import RequestHandle, ResponseDelta
from weft.client.response_queue import ResponseQueue
from weft.engine.request import Request
from weft.errors import ExecutorError


async def follow(
    responses: ResponseQueue, handle: RequestHandle, cancel: Callable[[Sequence[Request]], object]
) -> AsyncGenerator[ResponseDelta, None]:
    """The deltas of a request, to its last. Being closed early, or its task being cancelled, drops the request from the
    queue and gives its sequences to `cancel`."""
    woken = asyncio.Event()
    listener = partial(_wake, asyncio.get_running_loop(), woken)
    handle.listeners.append(listener)
    try:
        while (deltas := responses.take_now(handle)) is not None:
            for delta in deltas:
                yield delta
            if deltas and deltas[-1].is_final:
                return
            await woken.wait()
            woken.clear()
    finally:
        handle.listeners.remove(listener)
        is_early = not handle.is_over
        responses.drop(handle)  # where all was taken it is gone already
        if is_early:
            with contextlib.suppress(ExecutorError):  # it ended by itself
                cancel(handle.engine_requests)


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event, _: RequestHandle) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
        loop.call_soon_threadsafe(event.set)
