"""Where responses wait until somebody takes them.

The engine's thread notes what happened in short tuples, and publishes them once a turn. Responses are made of them by
whoever takes them, on his own thread (`responses.py`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.core import Kind
from weft.engine.beam import Hypothesis
from weft.engine.beam_request import BeamRequest
from weft.engine.lifecycle import Request as EngineRequest
from weft.errors import ExecutorError, InputError
from weft.executor.types import Request


@dataclass(eq=False, slots=True)
class Answer:
    """One sequence of a request, `index` among its siblings; the first `num_published` of its tokens were published."""

    ticket: Ticket
    index: int
    request: EngineRequest
    num_published: int = 0


class Event(NamedTuple):
    """Tokens `start` to `end` of an answer came; with `is_finished` it has ended. `is_final`: so has the request.
    `beams` are the best answers so far of one that is searched by beams. `error` stands where no answer was begun."""

    answer: Answer | None
    start: int = 0
    end: int = 0
    iteration: int = 0
    is_finished: bool = False
    is_final: bool = False
    beams: tuple[Hypothesis, ...] = ()
    error: str = ""


@dataclass(eq=False, slots=True)
class Ticket:
    """An enqueued request, from its number to the last response that is taken."""

    id: int
    request: Request
    answers: list[Answer] = field(default_factory=list)
    num_unfinished: int = 0
    is_over: bool = False
    events: deque[Event] = field(default_factory=deque)
    ready: threading.Condition | None = None
    listeners: list[Callable[[], object]] = field(default_factory=list)

    def begin(self, requests: Sequence[EngineRequest]) -> None:
        """These are its sequences."""
        self.answers = [Answer(self, index, request) for index, request in enumerate(requests)]
        self.num_unfinished = len(requests)


Taken = list[tuple[Ticket, list[Event]]]


class Mailbox:
    """Events of all requests until they are taken. Thread-safe; `note` and `publish` are the engine thread's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._any = threading.Condition(self._lock)
        self._tickets: dict[int, Ticket] = {}
        self._with_events: dict[int, Ticket] = {}  # in the order in which they got their first
        self._last_id = 0
        self._error: ExecutorError | None = None
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
                ticket = answer.ticket
                if ticket.is_over:
                    continue
                if is_finished:
                    ticket.num_unfinished -= 1
                    failed = answer.request.output.error is not None
                    ticket.is_over = failed or ticket.num_unfinished == 0
                    if failed:
                        orphans += [other.request for other in ticket.answers if other is not answer]
                start = answer.num_published
                event = Event(answer, start, end, iteration, is_finished, ticket.is_over, beams)
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

    def open(self, request: Request, num_sequences: int) -> Ticket:
        """Give a request its number. Sequences behind the first take one each, too."""
        with self._lock:
            ticket = Ticket(self._last_id + 1, request)
            self._last_id += num_sequences
            self._tickets[ticket.id] = ticket
            return ticket

    def drop(self, ticket: Ticket) -> None:
        """Forget a request: nobody will take its responses."""
        with self._lock:
            ticket.is_over = True
            ticket.events.clear()
            self._with_events.pop(ticket.id, None)
            self._tickets.pop(ticket.id, None)

    def refuse(self, ticket: Ticket, error: str) -> None:
        """The request ends with an error before it began."""
        with self._lock:
            ticket.is_over = True
            self._add(ticket, Event(None, is_finished=True, is_final=True, error=error))
            self._any.notify_all()

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
            for ticket in tickets:
                if ticket is not None and not self._wait_for(ticket, until):
                    break
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
        ticket.events.append(event)
        self._with_events[ticket.id] = ticket
        if ticket.ready is not None:
            ticket.ready.notify_all()

    def _drain(self, ticket: Ticket) -> list[Event]:
        events = list(ticket.events)
        ticket.events.clear()
        self._with_events.pop(ticket.id, None)
        if events and events[-1].is_final:
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


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout
