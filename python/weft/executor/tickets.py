"""What a mailbox keeps: a `Ticket` for each request, with the `Event`s that nobody has taken yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.engine.beam.search import Hypothesis
from weft.engine.request import Request as EngineRequest
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
    `beams` are the best answers so far of one that is searched by beams. `error` is why it failed, or, without an
    answer, why none was begun."""

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
    """An enqueued request, from its number to the last response that is taken. `num_bytes` is what it holds, about;
    `num_waiting` calls wait for it."""

    id: int
    request: Request
    num_bytes: int = 0
    answers: list[Answer] = field(default_factory=list)
    num_unfinished: int = 0
    is_over: bool = False
    events: deque[Event] = field(default_factory=deque)
    unread_bytes: int = 0
    ready: threading.Condition | None = None
    num_waiting: int = 0
    listeners: list[Callable[[], object]] = field(default_factory=list)

    def begin(self, requests: Sequence[EngineRequest]) -> None:
        """These are its sequences."""
        self.answers = [Answer(self, index, request) for index, request in enumerate(requests)]
        self.num_unfinished = len(requests)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody is there to take what comes."""
        return self.num_waiting > 0 or bool(self.listeners)


Taken = list[tuple[Ticket, list[Event]]]
