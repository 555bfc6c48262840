"""A front's view of a submitted request: a `Response` with the `ResponseDelta`s that are not taken yet."""

from __future__ import annotations

import threading
from collections import abc, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from weft.core import Hypothesis
from weft.core.request import Request
from weft.engine.sequence import Sequence
from weft.errors import InputError, RequestError


class ResponseDelta(NamedTuple):
    """The new tokens of a sequence, from `start` to `end` - 1.

    `is_finished`: the sequence has ended. `is_final`: the request has ended. `beams` holds the best answers of a beam
    search so far. `step` is the number of the engine's step, None before the first token. `error` says why the sequence
    failed. A delta without a sequence belongs to a request that could not begin, and `error` says why.
    """

    sequence: Sequence | None
    start: int = 0
    end: int = 0
    iteration: int = 0
    is_finished: bool = False
    is_final: bool = False
    beams: tuple[Hypothesis, ...] = ()
    error: str = ""
    step: int | None = None


@dataclass(eq=False, slots=True)
class Response:
    """A submitted request, until its last delta is taken.

    `num_bytes` is its estimated size, and `num_waiting` the number of calls that wait for it. `listeners` are called
    with the response after new deltas and at the queue's end, on the engine's thread. If the request is refused or
    dropped, they are called on the thread of that caller."""

    id: int
    request: Request
    num_bytes: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    num_unfinished: int = 0
    is_over: bool = False
    error: InputError | RequestError | None = None
    deltas: deque[ResponseDelta] = field(default_factory=deque)
    unread_bytes: int = 0
    ready: threading.Condition | None = None
    num_waiting: int = 0
    listeners: list[Callable[[Response], object]] = field(default_factory=list)

    def begin(self, sequences: abc.Sequence[Sequence]) -> None:
        """Set the sequences of the request."""
        self.sequences, self.num_unfinished = list(sequences), len(sequences)

    def drop_inputs(self) -> None:
        """Release the guide, which may be large, once only the answer is needed."""
        if self.request.guide is None:
            return
        self.request = replace(self.request, guide=None)
        for sequence in self.sequences:
            sequence.request = self.request

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for the response or listens to it."""
        return self.num_waiting > 0 or bool(self.listeners)


Taken = list[tuple[Response, list[ResponseDelta]]]
