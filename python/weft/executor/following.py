"""The events of one request as they come, without blocking an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial

from weft.engine.request import Request as EngineRequest
from weft.errors import ExecutorError
from weft.executor.mailbox import Mailbox
from weft.executor.tickets import Event, Ticket


async def follow(
    mailbox: Mailbox, ticket: Ticket, cancel: Callable[[Sequence[EngineRequest]], object]
) -> AsyncGenerator[Event, None]:
    """The events of a request, to its last. Being closed early, or its task being cancelled, drops the request from the
    mailbox and gives its sequences to `cancel`."""
    woken = asyncio.Event()
    listener = partial(_wake, asyncio.get_running_loop(), woken)
    ticket.listeners.append(listener)
    try:
        while (events := mailbox.take_now(ticket)) is not None:
            for event in events:
                yield event
            if events and events[-1].is_final:
                return
            await woken.wait()
            woken.clear()
    finally:
        ticket.listeners.remove(listener)
        is_early = not ticket.is_over
        mailbox.drop(ticket)  # where all was taken it is gone already
        if is_early:
            with contextlib.suppress(ExecutorError):  # it ended by itself
                cancel([answer.request for answer in ticket.answers])


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
        loop.call_soon_threadsafe(event.set)
