"""Trial compiles of untrusted guides in another process, which can be killed.

A call into a grammar library can't be interrupted, and can't be limited in memory or stack. Its result can't be moved
between processes in reasonable time. So a helper process compiles an untrusted guide first. A guide that passes is
compiled again in this process, by the library that the trial chose, from the text that the trial prepared.

The helper (`trial_worker.py`) loads the vocabulary once and forks a child for each trial. The child fails or dies
when it exceeds its time or memory. The helper dies with this process, however this process ends. A helper that died
or does not answer is replaced. Callers wait for a helper only until a deadline, and never while they hold a lock. A
helper may be stopped, or may start slowly on a busy machine.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.core.awake import AwakeTimer, cpu_seconds
from weft.core.forks import IGNORE_SIGNALS
from weft.errors import GuideError, UnavailableError
from weft.grammar.compile.parts import Part, unpacked
from weft.grammar.compile.trial_worker import MAX_WALL_FACTOR, TrialJob
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits
from weft.grammar.vocabulary.tokenizer import Vocabulary

HELPER_WAIT_S = 30.0
"""Maximum wait of a guide for a helper that is starting or being replaced."""
BEGIN_S = 5.0
"""Maximum wait for a child to begin, on a busy machine. After that the helper counts as stopped and is replaced."""
ENDING_S = 1.0
"""Grace period for the report of a child's end, after the child's own limit."""


@dataclass(frozen=True)
class Verdict:
    """The result of a trial that passed: a `Part` for each guide that a library compiled, nested ones too, by digest,
    and the measured memory of the compiled guide (0: unknown)."""

    parts: Mapping[str, Part]
    memory_bytes: int = 0


class _Died(Exception):
    """A child died without an answer while it tried `library` (None: before it tried any) of `num_libraries`."""

    def __init__(self, reason: str, library: str | None, num_libraries: int) -> None:
        super().__init__(reason)
        self.library, self.num_libraries = library, num_libraries


class _Late(AwakeTimer):
    """A timeout: shuts a connection down after some seconds, so that a blocked `recv` returns."""

    def __init__(self, seconds: float, connection: socket.socket) -> None:
        super().__init__(seconds, self._end)
        self.has_rung = False
        self._connection = connection

    def _end(self) -> None:
        self.has_rung = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class _Lost(Exception):
    """The helper died or does not answer, through no fault of the guide."""


class Trial:
    """A helper process that tries guides for one vocabulary, with a backend of the registry.

    The constructor starts the process, which is ready some seconds later; `wait` waits for it. `close` ends it.
    """

    def __init__(
        self, vocabulary: Vocabulary, backend: str = "auto", limits: CompileLimits | None = None
    ) -> None:
        self._helpers = Helpers(vocabulary, backend, limits or CompileLimits())
        self.close = weakref.finalize(self, self._helpers.close)

    def wait(self, until: float | None = None) -> None:
        """Wait until the helper is ready. Raises `UnavailableError` at the deadline `until`, a time of the monotonic
        clock. Without a deadline it waits as long as the helper's start takes, and raises `UnavailableError` once a
        start has failed."""
        self._helpers.get(until)

    def run(
        self,
        guide: Guide,
        limits: CompileLimits,
        closes: bool = False,
        *,
        until: float | None = None,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Verdict:
        """Compile a guide in another process. With `closes` also compute its shortest endings. Thread-safe.

        Raises `GuideError` if the guide does not pass: it must compile within its memory and half of `limits.time_s`.
        If a library crashes or takes too long, another one may try, with a quarter of `limits.time_s`. Raises
        `UnavailableError` if the trial can't run now. If the helper dies, the next helper tries once more. The wait for
        that helper, at most until `until`, is inside the context `waiting()`.
        """
        until = until if until is not None else time.monotonic() + HELPER_WAIT_S
        job = TrialJob(guide, limits, limits.time_s / 2, closes)
        try:
            return self._try(job, until, waiting)
        except _Died as died:
            # This library took too long or crashed. Another one may compile the guide.
            if died.library is None or died.num_libraries < 2:
                raise GuideError(str(died)) from None
            job = TrialJob(guide, limits, limits.time_s / 4, closes, {died.library: str(died)})
        try:
            return self._try(job, until, waiting)
        except _Died as died:
            raise GuideError(str(died)) from None

    @property
    def pid(self) -> int:
        """The process id of the helper."""
        return self._helpers.pid

    def _try(
        self, job: TrialJob, until: float, waiting: Callable[[], AbstractContextManager[object]]
    ) -> Verdict:
        message = pickle.dumps(job)
        helper = self._helpers.get(until)
        try:
            return self._ask(helper, message, job)
        except _Lost:
            with waiting():
                helper = self._helpers.get(until)
        try:
            return self._ask(helper, message, job)
        except _Lost as lost:
            raise UnavailableError(
                f"the process that tries untrusted guides {lost}; send the guide again later"
            ) from None

    def _ask(self, helper: Helper, message: bytes, job: TrialJob) -> Verdict:
        """Run the job in a child of the helper, and return its verdict. Raises `GuideError` for a guide that does not
        pass, `_Died` if the child died without an answer, and `_Lost` if the helper died or does not answer."""
        reports, texts = self._exchange(helper, message, job)
        if reports.get("error") is not None:
            raise GuideError(reports["error"])
        with suppress(KeyError, ValueError):  # the child ended before its verdict, or while it sent the texts
            return Verdict(unpacked(reports["parts"], texts), reports["memory_bytes"])
        if self._helpers.is_closed:
            raise GuideError("the compiler was closed")
        if "parts" in reports:  # the guide passed, and the child was killed while it sent the texts
            raise _Lost("was ended")
        if "signal" not in reports:  # the helper reports the end of every child, so it has ended itself
            self._helpers.lose(helper)
            raise _Lost("was ended")
        _raise_if_not_the_guide(reports["signal"], reports["cpu_s"], job)
        raise _Died(_reason_of(reports["signal"], job), reports.get("trying"), reports.get("of", 1))

    def _exchange(self, helper: Helper, message: bytes, job: TrialJob) -> tuple[dict[str, Any], bytes]:
        """Send a job to a new child. Returns the merged report lines of the child and of the helper, and the texts that
        follow a verdict. Raises `_Lost` if the helper is dead, or on a timeout."""
        connection = helper.connect()
        if connection is None:
            self._helpers.lose(helper)
            raise _Lost("was ended")
        received = bytearray()
        with connection:
            late = _Late(BEGIN_S, connection)
            with late, suppress(OSError):
                received += connection.recv(1)
            if received and not late.has_rung:
                # The child's own limit is shorter, so this timeout means that the child or the helper was stopped.
                late = _Late(MAX_WALL_FACTOR * job.time_s + ENDING_S, connection)
                with late, suppress(OSError):  # the child may end at any time
                    # The child's first output is an empty line. Anything else is the helper's report that it died.
                    if received == b"\n":
                        received.clear()
                        connection.sendall(message)
                        connection.shutdown(socket.SHUT_WR)
                    while part := connection.recv(1 << 20):
                        received += part
            if late.has_rung:
                self._helpers.lose(helper)
                raise _Lost("did not answer")
        reports: dict[str, Any] = {}
        # The verdict is the line with "error". It is the last line: raw texts follow it.
        while "error" not in reports and (end := received.find(b"\n")) >= 0:
            reports |= json.loads(received[:end])
            del received[: end + 1]
        return reports, bytes(received)


def _raise_if_not_the_guide(signal_number: int, cpu_s: float, job: TrialJob) -> None:
    """Raise `UnavailableError` if a child died through no fault of its guide. It got too little CPU time, or was killed
    from outside, as by the OOM killer."""
    if signal_number == signal.SIGALRM and cpu_s < job.time_s / 2:
        raise UnavailableError(
            f"this machine is too busy to try the guide: it got {cpu_s:.1f} s of a CPU in "
            f"{MAX_WALL_FACTOR * job.time_s:g} s; send it again later"
        )
    if signal_number == signal.SIGKILL:
        raise UnavailableError(
            "the guide's trial was killed from outside, as where this machine has no memory left; send the guide again "
            "later"
        )


def _reason_of(signal_number: int, job: TrialJob) -> str:
    """Return the error message for a guide whose child died from this signal (0: from none)."""
    if signal_number in (signal.SIGALRM, signal.SIGPROF):
        return (
            f"the guide did not compile in {job.time_s:g} s of trial, half of CompileLimits.time_s; simplify it"
            if not job.refused
            else f"the guide did not compile in {job.time_s:g} s of trial with another library; simplify it"
        )
    return (
        "the guide's trial compile ended without an answer: it took more than the "
        f"{job.limits.memory_bytes >> 20} MiB of CompileLimits.memory_bytes, or the grammar library crashed; "
        "simplify it"
    )


_log = logging.getLogger(__name__)

START = IGNORE_SIGNALS + (
    "import sys; sys.path[:] = {path!r}; from weft.grammar.limits import CompileLimits; "
    "from weft.grammar.compile.trial_worker import serve; "
    "serve({fd}, {file!r}, {backend!r}, CompileLimits(**{limits!r}))"
)
START_CPU_S, START_STALL_S = 60.0, 60.0
"""The maximum CPU time of a start, and the maximum time in which a starting helper uses no CPU. A helper that exceeds
one of them is replaced. Wall time does not count: on a busy machine a start may take minutes."""
MAX_PAUSE_S = 30.0
"""Maximum backoff between failing starts."""


class Helper:
    """One helper process. The constructor starts it. Raises `UnavailableError` if that fails, and `OSError` if no
    socket or file can be made."""

    def __init__(self, vocabulary: Vocabulary, backend: str, limits: CompileLimits) -> None:
        self._control, helper_end = socket.socketpair()
        self._control.settimeout(START_STALL_S)
        handle, name = tempfile.mkstemp(prefix="weft-vocabulary-", suffix=".json")
        os.close(handle)
        vocabulary.dump(name)
        command = START.format(
            path=sys.path, fd=helper_end.fileno(), file=name, backend=backend, limits=asdict(limits)
        )
        try:
            with helper_end:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", command],
                    pass_fds=[helper_end.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        except OSError as error:
            self._control.close()
            Path(name).unlink()
            raise UnavailableError(
                f"the process that tries untrusted guides does not start: {error}"
            ) from error
        self.stop = weakref.finalize(self, _stop, os.getpid(), self.process, self._control, name)
        # A helper that stops at exit would look dead to `Helpers`, which would start another.
        self.stop.atexit = False

    def starts(self) -> bool:
        """Wait until the process is ready. Returns False if it dies or takes too long."""
        used_s = 0.0
        while True:
            try:
                return self._control.recv(1) == b"R"
            except TimeoutError:
                before_s, used_s = used_s, cpu_seconds(self.process.pid)
                if used_s <= before_s or used_s > START_CPU_S:
                    return False
            except OSError:  # `_stop` has shut the socket down
                return False

    def connect(self) -> socket.socket | None:
        """Ask for a new child, and return the connection to it; None if the helper has died."""
        connection, child_end = socket.socketpair()
        with child_end:
            try:
                socket.send_fds(self._control, [b"T"], [child_end.fileno()])
            except OSError:
                connection.close()
                return None
        return connection


def _stop(owner: int, process: subprocess.Popen[bytes], control: socket.socket, vocabulary_file: str) -> None:
    if os.getpid() != owner:  # in a fork: the helper belongs to the parent
        control.close()
        return
    with suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in `starts`
    process.kill()
    process.wait()
    control.close()
    Path(vocabulary_file).unlink(missing_ok=True)


class Helpers:
    """Keeps one helper process alive: a thread replaces it when it dies. `close` ends both."""

    def __init__(self, vocabulary: Vocabulary, backend: str, limits: CompileLimits) -> None:
        self._arguments = (vocabulary, backend, limits)
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._ready: Helper | None = None
        self._has_failed = False  # the latest start failed
        self._latest = Helper(*self._arguments)
        self.is_closed = False
        threading.Thread(target=self._keep, name="weft-helper", daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id of the latest helper."""
        return self._latest.process.pid

    def get(self, until: float | None) -> Helper:
        """Wait for a helper that is ready. Raises `UnavailableError` at the deadline `until` of the monotonic clock
        (None: once a start has failed), and `GuideError` after `close`."""
        with self._changed:
            if until is None:
                self._changed.wait_for(lambda: self._ready or self.is_closed or self._has_failed)
            else:
                left_s = max(0.0, until - time.monotonic())
                self._changed.wait_for(lambda: self._ready or self.is_closed, left_s)
            if self.is_closed:
                raise GuideError("the compiler was closed")
            if self._ready is None:
                raise UnavailableError(
                    "the process that tries untrusted guides is starting; send the guide again later"
                )
            return self._ready

    def lose(self, helper: Helper) -> None:
        """Kill a helper that does not answer, so that the thread replaces it."""
        with self._changed:
            if self._ready is helper:
                self._ready = None
        with suppress(OSError):
            helper.process.kill()

    def close(self) -> None:
        """End the helper process, and with it every trial."""
        if os.getpid() != self._owner:
            self._latest.stop()
            return
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
            latest = self._latest
        latest.stop()

    def _keep(self) -> None:
        """The thread's loop: serve with one helper after another, until `close`."""
        num_failed = 0  # consecutive starts that failed
        while True:
            num_failed = 0 if self._serve() else num_failed + 1
            while not self._start_another(num_failed):
                if self.is_closed:
                    return
                num_failed += 1

    def _serve(self) -> bool:
        """Make the latest helper available until it dies. Returns whether it was ever ready."""
        helper = self._latest
        has_started = helper.starts()
        with self._changed:
            self._has_failed = not has_started
            self._ready = helper if has_started else None
            self._changed.notify_all()
        if has_started:
            helper.process.wait()
        with self._changed:
            if self._ready is helper:
                self._ready = None
        helper.stop()
        return has_started

    def _start_another(self, num_failed: int) -> bool:
        """Start the next helper, after a backoff if earlier starts failed. Returns False if the start fails, or after
        `close`."""
        with self._changed:
            pause_s = min(2.0**num_failed, MAX_PAUSE_S) if num_failed else 0.0
            if self._changed.wait_for(lambda: self.is_closed, pause_s):
                return False
        _log.warning("the helper process %d, which tries guides, died; another starts", self.pid)
        try:
            helper = Helper(*self._arguments)
        except (UnavailableError, OSError) as error:
            _log.warning("%s", error)
            with self._changed:
                self._has_failed = True
                self._changed.notify_all()
            return False
        with self._changed:
            if self.is_closed:
                helper.stop()
                return False
            self._latest = helper
        return True
