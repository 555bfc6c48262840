"""What a front holds of a request that it submitted: a `RequestHandle`, with the `ResponseDelta`s nobody took yet."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.core import Hypothesis, Output
from weft.core.request import GenerationRequest
from weft.engine.sequence import Request
from weft.errors import InputError, RequestError


@dataclass(eq=False, slots=True)
class AnswerSequence:
    """One sequence of a request, `index` among its siblings; the first `num_published` of its tokens were
    published."""

    handle: RequestHandle
    index: int
    request: Request
    num_published: int = 0

    @property
    def output(self) -> Output:
        """Its answer so far. The engine's thread adds to it; what a delta names stays as it is."""
        return self.request.output

    @property
    def hypotheses(self) -> Sequence[Hypothesis] | None:
        """The best answers so far of a beam search, best first; None of any other sequence."""
        return self.output.hypotheses if self.request.beam is not None else None


class ResponseDelta(NamedTuple):
    """Tokens `start` to `end` of a sequence came; with `is_finished` it has ended. `is_final`: so has the request.
    `beams` are the best answers so far of a beam search. `turn` is the engine's, None before the first token. `error`
    is why it failed, or, without a sequence, why none was begun."""

    sequence: AnswerSequence | None
    start: int = 0
    end: int = 0
    iteration: int = 0
    is_finished: bool = False
    is_final: bool = False
    beams: tuple[Hypothesis, ...] = ()
    error: str = ""
    turn: int | None = None


@dataclass(eq=False, slots=True)
class RequestHandle:
    """A submitted request, from its number to the last delta that is taken. `num_bytes` is what it holds, about;
    `num_waiting` calls wait for it. `listeners` are called with it, on the engine's thread, when a delta came."""

    id: int
    request: GenerationRequest
    num_bytes: int = 0
    sequences: list[AnswerSequence] = field(default_factory=list)
    num_unfinished: int = 0
    is_over: bool = False
    error: InputError | RequestError | None = None
    deltas: deque[ResponseDelta] = field(default_factory=deque)
    unread_bytes: int = 0
    ready: threading.Condition | None = None
    num_waiting: int = 0
    listeners: list[Callable[[RequestHandle], object]] = field(default_factory=list)

    def begin(self, requests: Sequence[Request]) -> None:
        """These are its sequences."""
        self.sequences = [AnswerSequence(self, index, request) for index, request in enumerate(requests)]
        self.num_unfinished = len(requests)

    @property
    def engine_requests(self) -> list[Request]:
        """What the engine knows of it."""
        return [sequence.request for sequence in self.sequences]

    @property
    def is_awaited(self) -> bool:
        """Whether somebody is there to take what comes."""
        return self.num_waiting > 0 or bool(self.listeners)


Taken = list[tuple[RequestHandle, list[ResponseDelta]]]
