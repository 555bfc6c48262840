"""Where deltas of answers wait until somebody takes them.

The engine's thread notes what happened in short tuples and publishes them once a step. Responses are made of them by
whoever takes them, on that thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.client.capacity import NO_LIMITS, ClientLimits
from weft.client.responses import AnswerSequence, RequestHandle, ResponseDelta, Taken
from weft.client.unread import Unread
from weft.core import Hypothesis, Kind
from weft.core.request import GenerationRequest
from weft.engine.sequence import Request
from weft.errors import ExecutorError, InputError, RequestError

Listener = Callable[[RequestHandle], object]


class ResponseQueue:
    """Deltas of all requests until they are taken, or too many are left unread (`unread.py`). Thread-safe; `note` and
    `publish` are the engine thread's. `pending_bytes` is what requests hold that have not ended."""

    def __init__(self, limits: ClientLimits = NO_LIMITS) -> None:
        self.pending_bytes = 0
        self._lock = threading.Lock()
        self._any = threading.Condition(self._lock)
        self._handles: dict[int, RequestHandle] = {}
        self._with_deltas: dict[int, RequestHandle] = {}  # in the order in which they got their first
        self._last_id = 0
        self._error: ExecutorError | None = None
        self._unread = Unread(limits)
        self._keeps_answers_alone = limits.max_unread_bytes is not None
        self.noted: list[tuple[AnswerSequence, int, int, bool, tuple[Hypothesis, ...], int | None]] = []

    # -- the engine's thread

    def note(self, sequence: AnswerSequence, request: Request) -> None:
        """Something happened to a sequence: `Request.on_progress`."""
        if request.is_finished or sequence.handle.request.streams:
            output, beams = request.output, tuple(sequence.hypotheses or ())
            stats = output.stats
            done = (
                sequence,
                len(output.token_ids),
                stats.iterations,
                request.is_finished,
                beams,
                stats.last_turn,
            )
            self.noted.append(done)

    def publish(self) -> list[Request]:
        """Let what was noted be taken. Gives the sequences whose sibling failed: they are to be cancelled."""
        noted, self.noted = self.noted, []
        orphans: list[Request] = []
        told: list[RequestHandle] = []
        if not noted:
            return orphans
        with self._lock:
            for sequence, end, iteration, is_finished, beams, turn in noted:
                handle, error = sequence.handle, ""
                if handle.is_over:
                    continue
                if is_finished:
                    error = self._end_of(sequence)
                    if error:
                        orphans += [other.request for other in handle.sequences if other is not sequence]
                start, sequence.num_published = sequence.num_published, end
                is_over = handle.is_over
                self._add(
                    handle,
                    ResponseDelta(sequence, start, end, iteration, is_finished, is_over, beams, error, turn),
                )
                told.append(handle)
            self._any.notify_all()
        _tell(told)
        return orphans

    def end(self, error: ExecutorError) -> None:
        """Nothing more will come; whoever waits for it hears why."""
        self.publish()
        with self._lock:
            self._error = error
            self._any.notify_all()
            told = list(self._handles.values())
            for handle in told:
                if handle.ready is not None:
                    handle.ready.notify_all()
        _tell(told)

    # -- any thread

    def check(self) -> None:
        """Raise `ExecutorError` if nothing more will come."""
        if self._error is not None:
            raise ExecutorError(str(self._error)) from self._error.__cause__

    def open(
        self, request: GenerationRequest, num_bytes: int = 0, listener: Listener | None = None
    ) -> RequestHandle:
        """Give a request, which holds so many bytes, its number. Sequences after the first take one each, too."""
        with self._lock:
            handle = RequestHandle(self._last_id + 1, request, num_bytes)
            if listener is not None:
                handle.listeners.append(listener)
            self._last_id += max(request.num_sequences, 1)
            self._handles[handle.id] = handle
            self.pending_bytes += num_bytes
            return handle

    def drop(self, handle: RequestHandle) -> None:
        """Let go of a request: nobody will take its responses. Who waits for it hears that it is gone."""
        with self._lock:
            if handle.id not in self._handles:
                return
            if not handle.is_over:
                self.pending_bytes -= handle.num_bytes
            self._let_go(handle)
        _tell([handle])

    def refuse(self, handle: RequestHandle, error: InputError | RequestError) -> None:
        """The request ends with an error before it began."""
        with self._lock:
            handle.is_over, handle.error = True, error
            self._add(handle, ResponseDelta(None, is_finished=True, is_final=True, error=self._said(error)))
            self._any.notify_all()
        _tell([handle])

    def was_forgotten(self, request_id: int) -> bool:
        """Whether a request was given up because nobody took its responses."""
        with self._lock:
            return self._unread.was_forgotten(request_id)

    @property
    def num_forgotten(self) -> int:
        """How many requests were."""
        return self._unread.num_forgotten

    def find(self, request_id: int) -> RequestHandle | None:
        """The request of this number; None where its last response was taken. `InputError` for no request's number."""
        with self._lock:
            return self._find(request_id)

    def num_ready(self, request_id: int | None = None) -> int:
        """How many responses could be taken now, of one request or of all."""
        with self._lock:
            if request_id is None:
                return sum(len(handle.deltas) for handle in self._with_deltas.values())
            handle = self._find(request_id)
            return len(handle.deltas) if handle is not None else 0

    def take_any(self, timeout: float | None) -> Taken:
        """Everything there is, once there is something; nothing if there is none for `timeout` seconds."""
        with self._lock:
            self._check_entry()
            self._wait(self._any, lambda: bool(self._with_deltas), _deadline(timeout))
            return [(handle, self._drain(handle)) for handle in list(self._with_deltas.values())]

    def take(
        self, request_ids: Sequence[int], timeout: float | None
    ) -> list[tuple[RequestHandle | None, list[ResponseDelta]]]:
        """For each request what there is of it, once there is something of all, or after `timeout` seconds. None in
        the place of a request whose last response was taken before."""
        until = _deadline(timeout)
        with self._lock:
            self._check_entry()
            handles = [self._find(request_id) for request_id in request_ids]
            if len(set(request_ids)) < len(request_ids):
                raise InputError("a request stands in the list twice; give each number once")
            awaited = [handle for handle in handles if handle is not None]
            for handle in awaited:
                handle.num_waiting += 1
            try:
                for handle in awaited:
                    if not self._wait_for(handle, until):
                        break
            finally:
                for handle in awaited:
                    handle.num_waiting -= 1
            taken = [(handle, self._drain(handle) if handle is not None else []) for handle in handles]
            return [
                (handle if handle is not None and self._has_more(handle, deltas) else None, deltas)
                for handle, deltas in taken
            ]

    def take_now(self, handle: RequestHandle) -> list[ResponseDelta] | None:
        """What there is of a request; None where its last response was taken. Raises `ExecutorError` where there is
        nothing, and nothing more will come."""
        with self._lock:
            deltas = self._drain(handle)
            if not deltas and handle.id not in self._handles:
                return None
        if not deltas:
            self.check()
        return deltas

    @property
    def num_unread_bytes(self) -> int:
        """What requests hold that have ended, and whose last response nobody has taken."""
        return self._unread.num_bytes

    @property
    def num_open(self) -> int:
        """How many requests there are whose last response was not taken."""
        return len(self._handles)

    @property
    def has_unpublished(self) -> bool:
        """Whether something was noted that cannot be taken yet."""
        return bool(self.noted)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of any request is left, also nothing that was not published."""
        return not (self._handles or self._with_deltas or self.noted)

    # -- with the lock

    def _end_of(self, sequence: AnswerSequence) -> str:
        """A sequence has ended, and with the last one its request; why it failed, or nothing."""
        handle, error = sequence.handle, sequence.output.error
        handle.num_unfinished -= 1
        handle.is_over = error is not None or handle.num_unfinished == 0
        if error is None:
            return ""
        handle.error = error
        return self._said(error)

    def _said(self, error: InputError | RequestError) -> str:
        """What there is to say of an error. Where what nobody reads is bounded, what the exception came from is let go
        of: frames, and all that they hold, which would be kept as long as nobody takes the response."""
        if self._keeps_answers_alone:
            error.__traceback__ = error.__cause__ = error.__context__ = None
        return str(error) or type(error).__name__

    def _has_more(self, handle: RequestHandle, deltas: list[ResponseDelta]) -> bool:
        """Whether something came, or will: another thread may have taken the last response meanwhile."""
        return bool(deltas) or handle.id in self._handles

    def _add(self, handle: RequestHandle, delta: ResponseDelta) -> None:
        self._unread.add(handle, delta)
        self._with_deltas[handle.id] = handle
        if delta.is_final:
            self.pending_bytes -= handle.num_bytes
            if self._keeps_answers_alone and handle.request.guide is not None:
                handle.request = replace(handle.request, guide=None)
            for other in self._unread.end(handle):
                self._let_go(other)
        if handle.ready is not None:
            handle.ready.notify_all()

    def _let_go(self, handle: RequestHandle) -> None:
        handle.is_over = True
        handle.deltas.clear()
        self._unread.remove(handle)
        self._with_deltas.pop(handle.id, None)
        self._handles.pop(handle.id, None)
        if handle.ready is not None:
            handle.ready.notify_all()

    def _drain(self, handle: RequestHandle) -> list[ResponseDelta]:
        deltas = list(handle.deltas)
        handle.deltas.clear()
        handle.unread_bytes = 0
        self._with_deltas.pop(handle.id, None)
        if deltas and deltas[-1].is_final:
            self._unread.remove(handle)
            self._handles.pop(handle.id, None)
        return deltas

    def _find(self, request_id: int) -> RequestHandle | None:
        if not Kind.INTEGER.holds(request_id):
            raise InputError(
                f"there is no request {request_id!r}; give a whole number that enqueue_request gave (a time to wait "
                "is given as timeout=...)"
            )
        if not 0 < request_id <= self._last_id:
            raise InputError(f"there is no request {request_id!r}; give a number that enqueue_request gave")
        return self._handles.get(request_id)

    def _check_entry(self) -> None:
        """Of an executor that was shut down nothing is taken; of one that failed, what there is."""
        if self._error is not None and self._error.__cause__ is None:
            self.check()

    def _wait_for(self, handle: RequestHandle, until: float | None) -> bool:
        if handle.ready is None:
            handle.ready = threading.Condition(self._lock)
        # Taken by another thread, its last delta leaves nothing to wait for.
        return self._wait(handle.ready, lambda: bool(handle.deltas) or handle.id not in self._handles, until)

    def _wait(
        self, condition: threading.Condition, is_ready: Callable[[], bool], until: float | None
    ) -> bool:
        while not is_ready():
            if self._error is not None and self._error.__cause__ is None:
                return False  # an orderly end: there is nothing to come, and nothing went wrong
            self.check()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return False
            condition.wait(None if left is None else min(left, threading.TIMEOUT_MAX))
        return True


def _tell(handles: Sequence[RequestHandle]) -> None:
    for handle in handles:
        for listener in list(handle.listeners):
            listener(handle)


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout
