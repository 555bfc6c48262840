"""Where responses wait until somebody takes them.

The engine's thread notes what happened in short tuples, and publishes them once a turn. Responses are made of them by
whoever takes them, on his own thread (`responses.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from weft.core import Kind
from weft.engine.beam.request import BeamRequest
from weft.engine.beam.search import Hypothesis
from weft.engine.request import Request as EngineRequest
from weft.errors import ExecutorError, InputError
from weft.executor.tickets import Answer, Event, Taken, Ticket
from weft.executor.types import Request
from weft.executor.unread import MailboxLimits, Unread


class Mailbox:
    """Events of all requests until they are taken, or too many are left unread (`unread.py`). Thread-safe; `note` and
    `publish` are the engine thread's. `pending_bytes` is what requests hold that have not ended."""

    def __init__(self, limits: MailboxLimits | None = None) -> None:
        self.pending_bytes = 0
        self._lock = threading.Lock()
        self._any = threading.Condition(self._lock)
        self._tickets: dict[int, Ticket] = {}
        self._with_events: dict[int, Ticket] = {}  # in the order in which they got their first
        self._last_id = 0
        self._error: ExecutorError | None = None
        self._unread = Unread(limits or MailboxLimits())
        self._noted: list[tuple[Answer, int, int, bool, tuple[Hypothesis, ...]]] = []

    # -- the engine's thread

    def note(self, answer: Answer, request: EngineRequest) -> None:
        """Something happened to an answer: `EngineRequest.on_progress`."""
        if request.is_finished or answer.ticket.request.streaming:
            output = request.output
            beams = tuple(request.hypotheses) if isinstance(request, BeamRequest) else ()
            done = (answer, len(output.token_ids), output.stats.iterations, request.is_finished, beams)
            self._noted.append(done)

    def publish(self) -> list[EngineRequest]:
        """Let what was noted be taken. Gives the sequences whose sibling failed: they are to be cancelled."""
        noted, self._noted = self._noted, []
        orphans: list[EngineRequest] = []
        listeners: list[Callable[[], object]] = []
        if not noted:
            return orphans
        with self._lock:
            for answer, end, iteration, is_finished, beams in noted:
                ticket, error = answer.ticket, ""
                if ticket.is_over:
                    continue
                if is_finished:
                    ticket.num_unfinished -= 1
                    error = _error_of(answer.request)
                    ticket.is_over = bool(error) or ticket.num_unfinished == 0
                    if error:
                        orphans += [other.request for other in ticket.answers if other is not answer]
                start = answer.num_published
                event = Event(answer, start, end, iteration, is_finished, ticket.is_over, beams, error)
                answer.num_published = end
                self._add(ticket, event)
                listeners += ticket.listeners
            self._any.notify_all()
        for listener in listeners:
            listener()
        return orphans

    def end(self, error: ExecutorError) -> None:
        """Nothing more will come; whoever waits for it hears why."""
        self.publish()
        with self._lock:
            self._error = error
            self._any.notify_all()
            listeners = [listener for ticket in self._tickets.values() for listener in ticket.listeners]
            for ticket in self._tickets.values():
                if ticket.ready is not None:
                    ticket.ready.notify_all()
        for listener in listeners:
            listener()

    # -- any thread

    def check(self) -> None:
        """Raise `ExecutorError` if nothing more will come."""
        if self._error is not None:
            raise ExecutorError(str(self._error)) from self._error.__cause__

    def open(self, request: Request, num_sequences: int, num_bytes: int) -> Ticket:
        """Give a request, which holds so many bytes, its number. Sequences after the first take one each, too."""
        with self._lock:
            ticket = Ticket(self._last_id + 1, request, num_bytes)
            self._last_id += num_sequences
            self._tickets[ticket.id] = ticket
            self.pending_bytes += num_bytes
            return ticket

    def drop(self, ticket: Ticket) -> None:
        """Let go of a request: nobody will take its responses. Who waits for it hears that it is gone."""
        with self._lock:
            if ticket.id not in self._tickets:
                return
            if not ticket.is_over:
                self.pending_bytes -= ticket.num_bytes
            self._let_go(ticket)
            listeners = list(ticket.listeners)
        for listener in listeners:
            listener()

    def refuse(self, ticket: Ticket, error: str) -> None:
        """The request ends with an error before it began."""
        with self._lock:
            ticket.is_over = True
            self._add(ticket, Event(None, is_finished=True, is_final=True, error=error))
            self._any.notify_all()

    def was_forgotten(self, request_id: int) -> bool:
        """Whether a request was given up because nobody took its responses."""
        with self._lock:
            return self._unread.was_forgotten(request_id)

    @property
    def num_forgotten(self) -> int:
        """How many requests were."""
        return self._unread.num_forgotten

    def find(self, request_id: int) -> Ticket | None:
        """The request of this number; None where its last response was taken. `InputError` for no request's number."""
        with self._lock:
            return self._find(request_id)

    def num_ready(self, request_id: int | None = None) -> int:
        """How many responses could be taken now, of one request or of all."""
        with self._lock:
            if request_id is None:
                return sum(len(ticket.events) for ticket in self._with_events.values())
            ticket = self._find(request_id)
            return len(ticket.events) if ticket is not None else 0

    def take_any(self, timeout: float | None) -> Taken:
        """Everything there is, once there is something; nothing if there is none for `timeout` seconds."""
        with self._lock:
            self._check_entry()
            self._wait(self._any, lambda: bool(self._with_events), _deadline(timeout))
            return [(ticket, self._drain(ticket)) for ticket in list(self._with_events.values())]

    def take(
        self, request_ids: Sequence[int], timeout: float | None
    ) -> list[tuple[Ticket | None, list[Event]]]:
        """For each request what there is of it, once there is something of all, or after `timeout` seconds. None in
        the place of a request whose last response was taken before."""
        until = _deadline(timeout)
        with self._lock:
            self._check_entry()
            tickets = [self._find(request_id) for request_id in request_ids]
            if len(set(request_ids)) < len(request_ids):
                raise InputError("a request stands in the list twice; give each number once")
            awaited = [ticket for ticket in tickets if ticket is not None]
            for ticket in awaited:
                ticket.num_waiting += 1
            try:
                for ticket in awaited:
                    if not self._wait_for(ticket, until):
                        break
            finally:
                for ticket in awaited:
                    ticket.num_waiting -= 1
            taken = [(ticket, self._drain(ticket) if ticket is not None else []) for ticket in tickets]
            return [
                (ticket if ticket is not None and self._has_more(ticket, events) else None, events)
                for ticket, events in taken
            ]

    def take_now(self, ticket: Ticket) -> list[Event] | None:
        """What there is of a request; None where its last response was taken. Raises `ExecutorError` where there is
        nothing, and nothing more will come."""
        with self._lock:
            events = self._drain(ticket)
            if not events and ticket.id not in self._tickets:
                return None
        if not events:
            self.check()
        return events

    # -- with the lock

    def _has_more(self, ticket: Ticket, events: list[Event]) -> bool:
        """Whether something came, or will: another thread may have taken the last response meanwhile."""
        return bool(events) or ticket.id in self._tickets

    def _add(self, ticket: Ticket, event: Event) -> None:
        self._unread.add(ticket, event)
        self._with_events[ticket.id] = ticket
        if event.is_final:
            self.pending_bytes -= ticket.num_bytes
            for other in self._unread.end(ticket):
                self._let_go(other)
        if ticket.ready is not None:
            ticket.ready.notify_all()

    def _let_go(self, ticket: Ticket) -> None:
        ticket.is_over = True
        ticket.events.clear()
        self._unread.remove(ticket)
        self._with_events.pop(ticket.id, None)
        self._tickets.pop(ticket.id, None)
        if ticket.ready is not None:
            ticket.ready.notify_all()

    def _drain(self, ticket: Ticket) -> list[Event]:
        events = list(ticket.events)
        ticket.events.clear()
        ticket.unread_bytes = 0
        self._with_events.pop(ticket.id, None)
        if events and events[-1].is_final:
            self._unread.remove(ticket)
            self._tickets.pop(ticket.id, None)
        return events

    def _find(self, request_id: int) -> Ticket | None:
        if not Kind.INTEGER.holds(request_id):
            raise InputError(
                f"there is no request {request_id!r}; give a whole number that enqueue_request gave (a time to wait "
                "is given as timeout=...)"
            )
        if not 0 < request_id <= self._last_id:
            raise InputError(f"there is no request {request_id!r}; give a number that enqueue_request gave")
        return self._tickets.get(request_id)

    def _check_entry(self) -> None:
        """Of an executor that was shut down nothing is taken; of one that failed, what there is."""
        if self._error is not None and self._error.__cause__ is None:
            self.check()

    def _wait_for(self, ticket: Ticket, until: float | None) -> bool:
        if ticket.ready is None:
            ticket.ready = threading.Condition(self._lock)
        # Taken by another thread, its last event leaves nothing to wait for.
        return self._wait(ticket.ready, lambda: bool(ticket.events) or ticket.id not in self._tickets, until)

    def _wait(
        self, condition: threading.Condition, is_ready: Callable[[], bool], until: float | None
    ) -> bool:
        while not is_ready():
            self.check()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            condition.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
        return True


def _error_of(request: EngineRequest) -> str:
    """Why a request failed; nothing where it did not. What the exception came from is let go of: frames, and all that
    they hold, which would be kept as long as nobody takes the response."""
    error = request.output.error
    if error is None:
        return ""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return str(error) or type(error).__name__


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout
