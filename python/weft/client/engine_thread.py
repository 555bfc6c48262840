"""The thread that owns an engine. Other threads reach the engine through its inbox.

The thread steps while there is work. Otherwise it sleeps until a command, a compiled guide, a started matcher or a
deadline wakes it. An error of the loop itself ends every request and is raised to every later caller.

The thread holds no reference to its owner. The owner can then be garbage-collected, and its finalizer ends the thread.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import abc, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from weft.core import FinishReason
from weft.core.forks import Home
from weft.engine.engine import Engine
from weft.engine.sequence import Sequence
from weft.engine.stats import StepRecord
from weft.errors import ExecutorError, RequestError, brief

T = TypeVar("T")

_log = logging.getLogger(__name__)

SHUT_DOWN = "the executor was shut down; make a new one"


class StepListener(Protocol):
    """Receives the engine's steps, on the engine's thread."""

    def after_step(self, record: StepRecord | None, took: abc.Sequence[Sequence]) -> abc.Sequence[Sequence]:
        """Called with the `record` of each step, once the next one is launched or none is due. It is None if no step
        has ended since the previous call. `took` holds the sequences submitted since that call. The returned
        sequences are cancelled."""

    def at_end(self, error: ExecutorError) -> None:
        """Called once when there will be no more steps. `error` is the reason. All requests have ended."""


@dataclass(frozen=True)
class _Command:
    """A job for the thread between two steps. `abandon` is called instead of `run` if there will be no more steps."""

    run: Callable[[], object]
    abandon: Callable[[ExecutorError], object]


class EngineThread:
    """Runs `engine` on a separate thread. The public methods may be called from any thread at any time."""

    def __init__(self, engine: Engine, listener: StepListener) -> None:
        self.engine = engine
        self.home = Home("executor", ExecutorError)
        self._listener = listener
        self._wake = threading.Condition()
        self._inbox: deque[_Command] = deque()
        self._num_sent = self._num_queued = 0  # sequences in the inbox, and those that wait in the engine
        self._closing = self._is_due = False
        self._error: ExecutorError | None = None
        # Only the thread changes these: the sequences that have not ended, and those that the listener does not know
        # yet.
        self._live: dict[Sequence, None] = {}
        self._took: list[Sequence] = []
        self._untold: StepRecord | None = None  # the last step, if the listener has not received it
        # A daemon, because the interpreter joins other threads at exit before `atexit` runs, and would wait forever.
        self._thread = threading.Thread(target=self._run, name="weft-engine", daemon=True)
        engine.on_wake(partial(_wake, weakref.ref(self)))
        _threads.add(self)
        self._thread.start()

    def submit(self, sequences: abc.Sequence[Sequence]) -> None:
        """Queue sequences, so that the same step sees all of them. Raises `ExecutorError` if there will be no more
        steps."""
        self._post(_Command(partial(self._submit, sequences), partial(_abandon, sequences)), len(sequences))

    @property
    def num_waiting(self) -> int:
        """The number of sequences that waited for a guide, a slot or pages at the last step, plus those submitted
        since."""
        with self._wake:
            return self._num_sent + self._num_queued

    @property
    def is_idle(self) -> bool:
        """Whether all sequences have ended, the listener knows them, and the inbox is empty."""
        return not (self._live or self._took or self._inbox)

    def cancel(self, sequences: abc.Sequence[Sequence], reason: FinishReason = "cancelled") -> None:
        """End sequences before the next step. Does nothing for those that have ended. Does not wait."""
        self._post(_Command(partial(self._cancel, sequences, reason), lambda error: None))

    def call(self, function: Callable[[], T]) -> T:
        """Run `function` on the thread between two steps, or at once if the caller is that thread. Returns its result
        or raises its error."""
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()
        self._post(_Command(partial(_resolve, future, function), future.set_exception))
        return future.result()

    def check(self) -> None:
        """Raise `ExecutorError` if there will be no more steps, or none in this process."""
        self.home.check()
        if self._error is not None:
            raise ExecutorError(str(self._error)) from self._error.__cause__

    def close(self) -> None:
        """Cancel all requests and end the thread. Returns when the thread has ended. On that thread, and in a fork,
        which has no such thread, it returns at once."""
        if not self.home.is_here:
            return
        with self._wake:
            self._closing = True
            self._wake.notify()
        # A garbage collection on the engine's thread may finalize the owner and call this. A thread can't join itself.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # -- on the thread

    def _run(self) -> None:
        try:
            while self._serve():
                pass
        except BaseException as raised:
            error = ExecutorError(f"the executor's loop failed: {type(raised).__name__}: {raised}")
            error.__cause__ = raised
        else:
            error = ExecutorError(SHUT_DOWN)
        self._end(error)

    def _serve(self) -> bool:
        """Wait for work, then run all commands and at most one step. Returns False when the thread must end."""
        # A separate function, so that its locals do not keep objects alive during the next wait, which may be long.
        commands: deque[_Command] | None = None
        # While a step is due, the inbox is read without the lock: a command that arrives now runs after the step.
        if self._inbox or self._closing or not self._is_due:
            commands = self._next()
            if commands is None:
                return False
        had_commands = bool(commands)
        try:
            while commands:
                commands.popleft().run()
        finally:
            if commands:  # one failed, which ends the thread: `_end` abandons the others
                with self._wake:
                    self._inbox.extendleft(reversed(commands))
        # Without commands, `_next` returned because a step is due.
        if not had_commands or self.engine.can_step:
            self._untold = self.engine.step(launched=self._tell)
            num_queued = self._untold.queued
        else:
            num_queued = self.engine.num_waiting
        if num_queued != self._num_queued:
            with self._wake:
                self._num_queued = num_queued
        self._is_due = self.engine.can_step
        if not self._is_due:
            self._tell()
        return True

    def _tell(self) -> None:
        """Pass the last step to the listener."""
        # If a step is due, this runs after its launch. The threads that the listener wakes then compete for the GIL
        # while the device works, and do not delay the launch.
        record, self._untold = self._untold, None
        took: abc.Sequence[Sequence] = ()
        if self._took:
            took, self._took = self._took, []
        orphans = self._listener.after_step(record, took)
        if orphans:
            self._cancel(orphans, "cancelled")

    def _next(self) -> deque[_Command] | None:
        """Take the commands from the inbox. Waits for one until a step is due. None: the thread must end."""
        with self._wake:
            # `can_step` is read under the lock: an event that makes a step due notifies under it, so none is missed.
            while not (self._inbox or self._closing or self._is_due or self.engine.can_step):
                self._wake.wait(self._seconds_to_deadline())
            if self._closing:
                return None
            commands, self._inbox = self._inbox, deque()
            self._num_sent, self._num_queued = 0, self._num_queued + self._num_sent
            return commands

    def _seconds_to_deadline(self) -> float | None:
        deadline = self.engine.next_deadline
        if deadline is None:
            return None
        return min(max(deadline - time.perf_counter(), 0.0), threading.TIMEOUT_MAX)

    def _submit(self, sequences: abc.Sequence[Sequence]) -> None:
        for sequence in sequences:
            if sequence.is_finished:  # cancelled before it arrived here
                continue
            self._live[sequence] = None
            sequence.on_end = self._live.pop
            self._took.append(sequence)
            guide = sequence.guide.compiling if sequence.guide is not None else None
            self.engine.submit(sequence)
            # Added after the engine's own callback, which makes a step due. This one then wakes the thread to run it.
            if guide is not None and not guide.done():
                guide.add_done_callback(partial(_wake, weakref.ref(self)))

    def _cancel(self, sequences: abc.Sequence[Sequence], reason: FinishReason) -> None:
        for sequence in sequences:
            if sequence in self._live:
                self.engine.cancel(sequence, reason)

    def _end(self, error: ExecutorError) -> None:
        with self._wake:
            self._error = error
            left, self._inbox = self._inbox, deque()
        failed = error.__cause__ is not None
        if failed:
            _log.error("the executor ends: %s", brief(error), exc_info=error.__cause__)
        try:
            if not failed:
                self.engine.close()
        except BaseException as raised:
            error.__cause__ = raised
            _log.error("the engine did not close: %s", brief(raised), exc_info=raised)
        finally:
            _abandon(list(self._live), error)
            for command in left:
                command.abandon(error)
            self._listener.at_end(error)
        if failed:  # after the listener knows, because closing a broken engine may fail or hang
            self.engine.close()

    # -- from any thread

    def _post(self, command: _Command, num_requests: int = 0) -> None:
        self.home.check()  # before the lock, which the fork may have copied while held
        with self._wake:
            if self._error is None and not self._closing:
                self._inbox.append(command)
                self._num_sent += num_requests
                self._wake.notify()
                return
        self.check()  # raises the loop's error if there is one
        raise ExecutorError(SHUT_DOWN)


def _resolve(future: Future[T], function: Callable[[], T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


def _abandon(sequences: abc.Sequence[Sequence], error: ExecutorError) -> None:
    """End sequences that the engine never received or no longer runs: cancelled after a shutdown, failed after an
    error of the loop."""
    for sequence in sequences:
        if sequence.is_finished:
            continue
        if error.__cause__ is None:
            sequence.finish("cancelled")
            continue
        failure = RequestError(str(error))
        failure.__cause__ = error.__cause__
        sequence.fail(failure)


def _wake(thread: weakref.ref[EngineThread], _: object = None) -> None:
    """Wake the thread after a guide was compiled or refused, or a matcher has started."""
    alive = thread()
    if alive is not None:
        with alive._wake:
            alive._wake.notify()


_threads: weakref.WeakSet[EngineThread] = weakref.WeakSet()


@atexit.register  # runs before the runtime's handler, which its import registered earlier
def _close_all() -> None:
    for thread in list(_threads):
        thread.close()
