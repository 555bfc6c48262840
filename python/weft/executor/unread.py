"""What nobody reads has bounds: the responses of one request are merged, and requests that have ended are forgotten.

Merging loses nothing: tokens that would have come in several responses come in one. Forgetting does, so that it comes
last: the request that ended first goes first, but never the one that ended last, nor one that somebody waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from weft.executor.held import answer_bytes, event_bytes
from weft.executor.tickets import Answer, Event, Ticket

MAX_EVENT_BYTES = 4 << 20
"""What a request's unread events may hold, beyond the tokens, before they are merged."""
MAX_PASSED = 64
"""Awaited requests that one which ends looks past."""
MAX_NAMED = 65_536
"""Of so many requests that were forgotten it is known that they were."""


@dataclass(frozen=True)
class MailboxLimits:
    """`ExecutorConfig.max_unread_responses` of a request, `max_unread_bytes` of all that have ended."""

    max_unread_responses: int = 1024
    max_unread_bytes: int = 256 << 20


class Unread:
    """Requests that have ended and whose last response nobody has taken, the first that ended first. Its owner's lock
    guards it. `num_forgotten` were given up since it was made."""

    def __init__(self, limits: MailboxLimits) -> None:
        self.num_forgotten = 0
        self.num_bytes = 0
        self._limits = limits
        self._ended: dict[int, Ticket] = {}
        self._forgotten: dict[int, None] = {}

    def add(self, ticket: Ticket, event: Event) -> None:
        """Keep an event of a request until it is taken; with others, where there are too many."""
        ticket.events.append(event)
        ticket.unread_bytes += event_bytes(event)
        # Of each sequence one event stays, so the bound grows with them: merging stays seldom.
        most = max(self._limits.max_unread_responses, 2 * len(ticket.answers))
        if len(ticket.events) > most or ticket.unread_bytes > MAX_EVENT_BYTES:
            ticket.events = deque(merged(ticket.events))
            # What is left can't be merged further, and counts for nothing here.
            ticket.unread_bytes = 0

    def end(self, ticket: Ticket) -> list[Ticket]:
        """A request has ended. Gives those that are to be forgotten for it."""
        ticket.num_bytes += sum(answer_bytes(answer.request) for answer in ticket.answers)
        ticket.num_bytes += sum(map(event_bytes, ticket.events))
        self._ended[ticket.id] = ticket
        self.num_bytes += ticket.num_bytes
        gone = self._too_many(ticket)
        for other in gone:
            self._forgotten[other.id] = None
            self.num_forgotten += 1
            if len(self._forgotten) > MAX_NAMED:
                del self._forgotten[next(iter(self._forgotten))]
        return gone

    def _too_many(self, newest: Ticket) -> list[Ticket]:
        left, num_passed, gone = self.num_bytes, 0, []
        waiting = iter(list(self._ended.values())) if left > self._limits.max_unread_bytes else iter(())
        while left > self._limits.max_unread_bytes and num_passed < MAX_PASSED:
            other = next(waiting, newest)
            if other is newest:
                break
            if other.is_awaited:
                num_passed += 1
                self._ended[other.id] = self._ended.pop(other.id)  # not looked at again for a while
            else:
                gone.append(other)
                left -= other.num_bytes
        return gone

    def remove(self, ticket: Ticket) -> None:
        """Its last response was taken, or nobody will."""
        if self._ended.pop(ticket.id, None) is not None:
            self.num_bytes -= ticket.num_bytes

    def was_forgotten(self, request_id: int) -> bool:
        """Whether a request was given up, unread, of those that it is still known of."""
        return request_id in self._forgotten


def merged(events: Iterable[Event]) -> list[Event]:
    """One event for each answer, in the order of their last ones; what came of an answer comes in one."""
    kept: dict[Answer | None, Event] = {}
    for event in events:
        before = kept.pop(event.answer, None)
        kept[event.answer] = event if before is None else event._replace(start=before.start)
    return list(kept.values())
