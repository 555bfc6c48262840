"""Holds the deltas of answers until callers take them.

The engine's thread notes progress in short tuples, and publishes them as deltas once a step. A front turns the deltas
into its own responses on its callers' threads.
"""

from __future__ import annotations

import threading
import time
from collections import abc
from collections.abc import Callable
from typing import NamedTuple

from weft.client.capacity import NO_LIMITS, ClientLimits
from weft.client.responses import Response, ResponseDelta, Taken
from weft.client.unread import Unread
from weft.core import Hypothesis, ValueKind
from weft.core.request import Request
from weft.engine.sequence import Sequence
from weft.errors import ExecutorError, InputError, RequestError

Listener = Callable[[Response], object]


class Progress(NamedTuple):
    """The progress of a sequence, noted by the engine's thread: `end` tokens after `iteration` iterations."""

    response: Response
    sequence: Sequence
    end: int
    iteration: int
    is_finished: bool
    beams: tuple[Hypothesis, ...]
    step: int | None


class ResponseQueue:
    """Holds the deltas of all requests until they are taken, dropped or forgotten (`unread.py`).

    Thread-safe, but only the engine's thread may call `note`, `publish` and `end`. `pending_bytes` is the estimated
    size of the requests that have not ended."""

    def __init__(self, limits: ClientLimits = NO_LIMITS) -> None:
        self.pending_bytes = 0
        self._lock = threading.Lock()
        self._any = threading.Condition(self._lock)
        self._responses: dict[int, Response] = {}
        self._with_deltas: dict[int, Response] = {}  # in the order of their first untaken delta
        self._last_id = 0
        self._error: ExecutorError | None = None
        self._unread = Unread(limits)
        self._keeps_answers_alone = limits.max_unread_bytes is not None
        self.noted: list[Progress] = []

    # -- the engine's thread

    def note(self, response: Response, sequence: Sequence) -> None:
        """Note the progress of a sequence: its end or, if the request streams, any progress. Called by the sequence's
        `on_progress`."""
        if sequence.is_finished or response.request.streams:
            output, stats = sequence.output, sequence.output.stats
            self.noted.append(
                Progress(
                    response,
                    sequence,
                    len(output.token_ids),
                    stats.iterations,
                    sequence.is_finished,
                    tuple(sequence.hypotheses or ()),
                    stats.last_step,
                )
            )

    def publish(self) -> list[Sequence]:
        """Turn the notes into deltas that callers can take. Returns the sequences to cancel: those whose request has
        another sequence that failed."""
        noted, self.noted = self.noted, []
        orphans: list[Sequence] = []
        told: list[Response] = []
        if not noted:
            return orphans
        with self._lock:
            for response, sequence, end, iteration, is_finished, beams, step in noted:
                if response.is_over:  # dropped, or another sequence failed
                    continue
                error = ""
                if is_finished:
                    error = self._end_of(response, sequence)
                    if error:
                        orphans += [other for other in response.sequences if other is not sequence]
                start, sequence.num_published = sequence.num_published, end
                is_final = response.is_over
                self._add(
                    response,
                    ResponseDelta(sequence, start, end, iteration, is_finished, is_final, beams, error, step),
                )
                told.append(response)
            self._any.notify_all()
        _tell(told)
        return orphans

    def end(self, error: ExecutorError) -> None:
        """Publish the last notes, then end the queue. Waiting calls return, or raise `error` if it has a cause."""
        self.publish()
        with self._lock:
            self._error = error
            self._any.notify_all()
            told = list(self._responses.values())
            for response in told:
                if response.ready is not None:
                    response.ready.notify_all()
        _tell(told)

    # -- any thread

    def check(self) -> None:
        """Raise `ExecutorError` if the queue has ended."""
        if self._error is not None:
            raise ExecutorError(str(self._error)) from self._error.__cause__

    def open(self, request: Request, num_bytes: int = 0, listener: Listener | None = None) -> Response:
        """Register a request and number it. Each of its sequences takes a number. `num_bytes` is its estimated size."""
        with self._lock:
            response = Response(self._last_id + 1, request, num_bytes)
            if listener is not None:
                response.listeners.append(listener)
            self._last_id += max(request.num_sequences, 1)  # a refused request has no sequences, but a number
            self._responses[response.id] = response
            self.pending_bytes += num_bytes
            return response

    def drop(self, response: Response) -> None:
        """Remove a request and discard its deltas. Calls that wait for the request return."""
        with self._lock:
            if response.id not in self._responses:
                return
            if not response.is_over:
                self.pending_bytes -= response.num_bytes
            self._remove(response)
        _tell([response])

    def refuse(self, response: Response, error: InputError | RequestError) -> None:
        """End a request with an error before it has sequences."""
        with self._lock:
            response.is_over, response.error = True, error
            self._add(response, ResponseDelta(None, is_finished=True, is_final=True, error=self._said(error)))
            self._any.notify_all()
        _tell([response])

    def was_forgotten(self, request_id: int) -> bool:
        """Whether a request was forgotten because its responses were not taken. Only the last
        `unread.MAX_NAMED` of them are known."""
        with self._lock:
            return self._unread.was_forgotten(request_id)

    @property
    def num_forgotten(self) -> int:
        """The number of forgotten requests."""
        return self._unread.num_forgotten

    def find(self, request_id: int) -> Response | None:
        """The request with this number; None if its last response was taken or discarded. Raises `InputError` for a
        number that was never given."""
        with self._lock:
            return self._find(request_id)

    def num_ready(self, request_id: int | None = None) -> int:
        """The number of responses that can be taken now, of one request or of all."""
        with self._lock:
            if request_id is None:
                return sum(len(response.deltas) for response in self._with_deltas.values())
            response = self._find(request_id)
            return len(response.deltas) if response is not None else 0

    def take_any(self, timeout: float | None) -> Taken:
        """Wait until any request has deltas, then take the deltas of all requests. Empty if there are none after
        `timeout` seconds (None: no limit), or if a shutdown ends the queue meanwhile. Raises `ExecutorError` after a
        shutdown, and after a failure once no deltas are left."""
        with self._lock:
            self._check_entry()
            self._wait(self._any, lambda: bool(self._with_deltas), _deadline(timeout))
            return [(response, self._drain(response)) for response in list(self._with_deltas.values())]

    def take(
        self, request_ids: abc.Sequence[int], timeout: float | None
    ) -> list[tuple[Response | None, list[ResponseDelta]]]:
        """Wait at most `timeout` seconds (None: no limit) until every request has deltas, then take them. An entry's
        response is None if its last delta was taken or discarded before. Raises `ExecutorError` after a shutdown, and
        after a failure if a request has no deltas. Raises `InputError` for an unknown number, or one that occurs
        twice."""
        until = _deadline(timeout)
        with self._lock:
            self._check_entry()
            responses = [self._find(request_id) for request_id in request_ids]
            if len(set(request_ids)) < len(request_ids):
                raise InputError("a request stands in the list twice; give each number once")
            awaited = [response for response in responses if response is not None]
            for response in awaited:
                response.num_waiting += 1
            try:
                for response in awaited:
                    if not self._wait_for(response, until):
                        break
            finally:
                for response in awaited:
                    response.num_waiting -= 1
            taken = [
                (response, self._drain(response) if response is not None else []) for response in responses
            ]
            return [
                (response if response is not None and self._has_more(response, deltas) else None, deltas)
                for response, deltas in taken
            ]

    def take_now(self, response: Response) -> list[ResponseDelta] | None:
        """Take the deltas of a request without waiting; None if its last response was taken or discarded. Raises
        `ExecutorError` if there are none and the queue has ended."""
        with self._lock:
            deltas = self._drain(response)
            if not deltas and response.id not in self._responses:
                return None
        if not deltas:
            self.check()
        return deltas

    @property
    def num_unread_bytes(self) -> int:
        """The estimated size of the requests that have ended but whose last response is not taken."""
        return self._unread.num_bytes

    @property
    def num_open(self) -> int:
        """The number of requests whose last response is not taken."""
        return len(self._responses)

    @property
    def has_unpublished(self) -> bool:
        """Whether there are notes that are not published."""
        return bool(self.noted)

    @property
    def is_empty(self) -> bool:
        """Whether there are no requests, deltas or notes."""
        return not (self._responses or self._with_deltas or self.noted)

    # -- with the lock

    def _end_of(self, response: Response, sequence: Sequence) -> str:
        """Record the end of a sequence, which may end its request. Returns its error's text, or ""."""
        error = sequence.output.error
        response.num_unfinished -= 1
        response.is_over = error is not None or response.num_unfinished == 0
        if error is None:
            return ""
        response.error = error
        return self._said(error)

    def _said(self, error: InputError | RequestError) -> str:
        """The text of an error."""
        # Under a limit on unread answers, an error must not keep its traceback's frames, and the objects in them,
        # alive until the response is taken.
        if self._keeps_answers_alone:
            error.__traceback__ = error.__cause__ = error.__context__ = None
        return str(error) or type(error).__name__

    def _has_more(self, response: Response, deltas: list[ResponseDelta]) -> bool:
        """Whether the request has deltas now or may have more. False if another thread took the last response."""
        return bool(deltas) or response.id in self._responses

    def _add(self, response: Response, delta: ResponseDelta) -> None:
        self._unread.add(response, delta)
        self._with_deltas[response.id] = response
        if delta.is_final:
            self.pending_bytes -= response.num_bytes
            if self._keeps_answers_alone:
                response.drop_inputs()
            for other in self._unread.end(response):
                self._remove(other)
        if response.ready is not None:
            response.ready.notify_all()

    def _remove(self, response: Response) -> None:
        response.is_over = True
        response.deltas.clear()
        self._unread.remove(response)
        self._with_deltas.pop(response.id, None)
        self._responses.pop(response.id, None)
        if response.ready is not None:
            response.ready.notify_all()

    def _drain(self, response: Response) -> list[ResponseDelta]:
        deltas = list(response.deltas)
        response.deltas.clear()
        response.unread_bytes = 0
        self._with_deltas.pop(response.id, None)
        if deltas and deltas[-1].is_final:
            self._unread.remove(response)
            self._responses.pop(response.id, None)
        return deltas

    def _find(self, request_id: int) -> Response | None:
        if not ValueKind.INTEGER.holds(request_id):
            raise InputError(
                f"there is no request {request_id!r}; give a whole number that enqueue_request gave (a time to wait "
                "is given as timeout=...)"
            )
        if not 0 < request_id <= self._last_id:
            raise InputError(f"there is no request {request_id!r}; give a number that enqueue_request gave")
        return self._responses.get(request_id)

    def _check_entry(self) -> None:
        """Raise `ExecutorError` after a shutdown. After a failure, whose error has a cause, the remaining deltas can
        still be taken."""
        if self._error is not None and self._error.__cause__ is None:
            self.check()

    def _wait_for(self, response: Response, until: float | None) -> bool:
        if response.ready is None:
            response.ready = threading.Condition(self._lock)
        # If another thread took the last delta, the response is gone, and there is nothing to wait for.
        return self._wait(
            response.ready, lambda: bool(response.deltas) or response.id not in self._responses, until
        )

    def _wait(
        self, condition: threading.Condition, is_ready: Callable[[], bool], until: float | None
    ) -> bool:
        while not is_ready():
            if self._error is not None and self._error.__cause__ is None:
                return False  # a shutdown is no error for a call that waits already
            self.check()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            condition.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
        return True


def _tell(responses: abc.Sequence[Response]) -> None:
    # The caller must not hold the lock, because a listener may take responses.
    for response in responses:
        for listener in list(response.listeners):
            listener(response)


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout
