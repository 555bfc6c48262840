"""A front's view of a request that it submitted: a `Response`, with the `ResponseDelta`s not taken yet."""

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
    """Tokens `start` to `end` of a sequence, which are new; with `is_finished` it has ended. `is_final`: so has the
    request. `beams` are the best answers so far of a beam search. `step` is the engine's, None before the first token.
    `error` is why the sequence failed, or, without a sequence, why none began."""

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
    """A submitted request, from its number to the last delta that is taken. `num_bytes` is an estimate of its size;
    `num_waiting` calls wait for it. `listeners` are called with it, on the engine's thread, when a delta came."""

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
        """Set the sequences that answer it."""
        self.sequences, self.num_unfinished = list(sequences), len(sequences)

    def drop_inputs(self) -> None:
        """Release the guide, which may be large: only the answer is kept."""
        if self.request.guide is None:
            return
        self.request = replace(self.request, guide=None)
        for sequence in self.sequences:
            sequence.request = self.request

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for it or listens to it."""
        return self.num_waiting > 0 or bool(self.listeners)


Taken = list[tuple[Response, list[ResponseDelta]]]
