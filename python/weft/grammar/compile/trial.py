"""Trial compiles in another process: what a grammar library would do with a guide, where it can be killed.

A library's memory, its native stack and mostly its time have no limit that holds inside it; it can't be stopped,
and what it compiled can't be handed over in reasonable time. So a stranger's guide is first compiled in a helper
process (`helper.py`), whichever library it goes to; what passes is compiled here, by the library that the trial settled
for, from the text that the trial prepared for it. The helper (`precheck.py`) has read the vocabulary once and makes a
child for each trial, which ends by itself when its time is over or its memory is used up. It ends with this process,
however that ends.
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

from weft.core.awake import AwakeTimer
from weft.errors import GuideError, UnavailableError
from weft.grammar.compile.parts import Part, unpacked
from weft.grammar.compile.trial_worker import WAITING, Job
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits
from weft.grammar.vocabulary.tokenizer import Vocabulary

HELPER_WAIT_S = 30.0
"""Longer no guide waits for the helper, where that starts or was lost."""
BEGIN_S = 5.0
"""Within so long a helper begins with a guide, on a machine that is busy; one that does not was stopped."""
ENDING_S = 1.0
"""The end of a child may come so late."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a guide that passed: what each guide within it is to be compiled to, by digest, and the bytes of
    memory that it holds, as far as that is known (0)."""

    parts: Mapping[str, Part]
    memory_bytes: int = 0


class _Died(Exception):
    """A child ended without an answer, of `library` where that is known, which is one `of` so many."""

    def __init__(self, words: str, library: str | None, of: int) -> None:
        super().__init__(words)
        self.library, self.of = library, of


class _Late(AwakeTimer):
    """Ends a connection that takes longer than it may."""

    def __init__(self, seconds: float, connection: socket.socket) -> None:
        super().__init__(seconds, self._end)
        self.has_rung = False
        self._connection = connection

    def _end(self) -> None:
        self.has_rung = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)


class _Lost(Exception):
    """The helper was lost, through no fault of the guide."""


class Trial:
    """A helper process that tries guides for one vocabulary with a backend of the registry, whose own bounds are
    `limits`.

    It starts at once and is ready seconds later; `wait` waits for that. `close` ends it.
    """

    def __init__(
        self, vocabulary: Vocabulary, backend: str = "auto", limits: CompileLimits | None = None
    ) -> None:
        self._helpers = Helpers(vocabulary, backend, limits or CompileLimits())
        self.close = weakref.finalize(self, self._helpers.close)

    def wait(self, until: float | None = None) -> None:
        """Returns when the helper takes guides. Raises `UnavailableError` where it does not until then, by the
        monotonic clock (None: `HELPER_WAIT_S` from now)."""
        self._helpers.get(until if until is not None else time.monotonic() + HELPER_WAIT_S)

    def run(
        self,
        guide: Guide,
        limits: CompileLimits,
        closes: bool = False,
        *,
        until: float | None = None,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Verdict:
        """Compile a guide in another process, and with `closes` also work out how its answers end. Raises `GuideError`
        for one that does not compile, or not within half of `limits.time_s`, or that takes more memory, and
        `UnavailableError` where that can't be found out now. May be called by several threads at once.

        Where a library takes too long, or crashes, a backend that has another may choose that. Where the helper is
        lost, another one tries: `waiting()` is entered until that is there, at the latest at `until` (as for `wait`).
        """
        until = until if until is not None else time.monotonic() + HELPER_WAIT_S
        job = Job(guide, limits, limits.time_s / 2, closes)
        try:
            return self._try(job, until, waiting)
        except _Died as died:
            if died.library is None or died.of < 2:
                raise GuideError(str(died)) from None
            job = Job(guide, limits, limits.time_s / 4, closes, {died.library: str(died)})
        try:
            return self._try(job, until, waiting)
        except _Died as died:
            raise GuideError(str(died)) from None

    @property
    def pid(self) -> int:
        """The helper's process."""
        return self._helpers.pid

    def _try(self, job: Job, until: float, waiting: Callable[[], AbstractContextManager[object]]) -> Verdict:
        sent = pickle.dumps(job)
        helper = self._helpers.get(until)
        try:
            return self._ask(helper, sent, job)
        except _Lost:
            with waiting():
                helper = self._helpers.get(until)
        try:
            return self._ask(helper, sent, job)
        except _Lost as lost:
            raise UnavailableError(
                f"the process that tries guides of strangers {lost}; send the guide again later"
            ) from None

    def _ask(self, helper: Helper, sent: bytes, job: Job) -> Verdict:
        """The verdict of a child of the helper. Raises `GuideError` for a guide that does not pass, `_Died` where the
        child ended before, and `_Lost` where that is the helper's fault."""
        told, texts = self._said(helper, sent, job)
        if told.get("error") is not None:
            raise GuideError(told["error"])
        with suppress(KeyError, ValueError):  # it ended before, or while it sent the texts
            return Verdict(unpacked(told["parts"], texts), told["memory_bytes"])
        if self._helpers.is_closed:
            raise GuideError("the compiler was closed")
        if "parts" in told:  # it passed, and was ended while it sent them
            raise _Lost("was ended")
        if "signal" not in told:
            self._helpers.lose(helper)
            raise _Lost("was ended")
        _refuse_by_chance(told["signal"], told["cpu_s"], job)
        raise _Died(_why(told["signal"], job), told.get("trying"), told.get("of", 1))

    def _said(self, helper: Helper, sent: bytes, job: Job) -> tuple[dict[str, Any], bytes]:
        """What a child said before it ended, and was said of its end; and the texts that follow a verdict. Raises
        `_Lost` where nothing is said for too long: a child ends itself before, unless it was stopped, or the helper."""
        connection = helper.connect()
        if connection is None:
            self._helpers.lose(helper)
            raise _Lost("was ended")
        said = bytearray()
        with connection:
            late = _Late(BEGIN_S, connection)
            with late, suppress(OSError):
                said += connection.recv(1)
            if said and not late.has_rung:
                late = _Late(WAITING * job.time_s + ENDING_S, connection)
                with late, suppress(OSError):  # the child may end
                    if said == b"\n":  # it begins; else the helper says how it ended
                        said.clear()
                        connection.sendall(sent)
                        connection.shutdown(socket.SHUT_WR)
                    while part := connection.recv(1 << 20):
                        said += part
            if late.has_rung:
                self._helpers.lose(helper)
                raise _Lost("did not answer")
        told: dict[str, Any] = {}
        while "error" not in told and (end := said.find(b"\n")) >= 0:
            told |= json.loads(said[:end])
            del said[: end + 1]
        return told, bytes(said)


def _refuse_by_chance(number: int, cpu_s: float, job: Job) -> None:
    """Raise `UnavailableError` for a child that ended by no fault of its guide: it did not get the CPU, or somebody
    killed it."""
    if number == signal.SIGALRM and cpu_s < job.time_s / 2:
        raise UnavailableError(
            f"this machine is too busy to try the guide: it got {cpu_s:.1f} s of a CPU in {WAITING * job.time_s:g} s; "
            "send it again later"
        )
    if number == signal.SIGKILL:
        raise UnavailableError(
            "the guide's trial was killed from outside, as where this machine has no memory left; send the guide again "
            "later"
        )


def _why(number: int, job: Job) -> str:
    if number in (signal.SIGALRM, signal.SIGPROF):
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

START = (
    "import sys; sys.path[:] = {path!r}; from weft.grammar.limits import CompileLimits; "
    "from weft.grammar.compile.trial_worker import serve; "
    "serve({fd}, {file!r}, {backend!r}, CompileLimits(**{limits!r}))"
)
START_TIME_S = 60.0
"""What a start may take, importing on a machine that is busy. One that takes longer is replaced."""
MOST_PAUSE_S = 30.0
"""Between starts that fail one after another."""


class Helper:
    """One helper process, starting or started. Raises `UnavailableError` where it does not start."""

    def __init__(self, vocabulary: Vocabulary, backend: str, limits: CompileLimits) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_TIME_S)
        handle, name = tempfile.mkstemp(prefix="weft-vocabulary-", suffix=".json")
        os.close(handle)
        vocabulary.dump(name)
        command = START.format(
            path=sys.path, fd=theirs.fileno(), file=name, backend=backend, limits=asdict(limits)
        )
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", command],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        except OSError as error:
            self._control.close()
            Path(name).unlink()
            raise UnavailableError(
                f"the process that tries guides of strangers does not start: {error}"
            ) from error
        self.stop = weakref.finalize(self, _stop, os.getpid(), self.process, self._control, name)
        self.stop.atexit = False  # it would be replaced: who keeps it ends it

    def starts(self) -> bool:
        """Wait until it takes guides; False where it ended, or takes too long."""
        try:
            return self._control.recv(1) == b"R"
        except OSError:
            return False

    def connect(self) -> socket.socket | None:
        """A connection to a new child; None where the process ended, or takes no more."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"T"], [theirs.fileno()])
            except OSError:
                ours.close()
                return None
        return ours


def _stop(owner: int, process: subprocess.Popen[bytes], control: socket.socket, vocabulary_file: str) -> None:
    if os.getpid() != owner:  # in a fork: it is not this process's to end
        control.close()
        return
    with suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
    process.kill()
    process.wait()
    control.close()
    Path(vocabulary_file).unlink(missing_ok=True)


class Helpers:
    """One helper process at a time, from a thread that starts the next one when it is lost. `close` ends both."""

    def __init__(self, vocabulary: Vocabulary, backend: str, limits: CompileLimits) -> None:
        self._made_of = (vocabulary, backend, limits)
        self._owner = os.getpid()
        self._changed = threading.Condition()
        self._ready: Helper | None = None
        self._latest = Helper(*self._made_of)
        self.is_closed = False
        threading.Thread(target=self._keep, name="weft-helper", daemon=True).start()

    @property
    def pid(self) -> int:
        """The latest process."""
        return self._latest.process.pid

    def get(self, until: float) -> Helper:
        """The one that takes guides. Raises `UnavailableError` where there is none at the time `until` of the monotonic
        clock, and `GuideError` after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self.is_closed, max(0.0, until - time.monotonic()))
            if self.is_closed:
                raise GuideError("the compiler was closed")
            if self._ready is None:
                raise UnavailableError(
                    "the process that tries guides of strangers is starting; send the guide again later"
                )
            return self._ready

    def lose(self, helper: Helper) -> None:
        """It does not answer: another takes its place."""
        with self._changed:
            if self._ready is helper:
                self._ready = None
        with suppress(OSError):
            helper.process.kill()

    def close(self) -> None:
        """End the process, and what it tries."""
        if os.getpid() != self._owner:
            self._latest.stop()
            return
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()
            latest = self._latest
        latest.stop()

    def _keep(self) -> None:
        num_failed = 0  # starts, one after another
        while True:
            num_failed = 0 if self._serve() else num_failed + 1
            while not self._start_another(num_failed):
                if self.is_closed:
                    return
                num_failed += 1

    def _serve(self) -> bool:
        """Offer the latest until it ends; whether it ever took guides."""
        helper = self._latest
        has_started = helper.starts()
        if has_started:
            with self._changed:
                self._ready = helper
                self._changed.notify_all()
            helper.process.wait()
        with self._changed:
            if self._ready is helper:
                self._ready = None
        helper.stop()
        return has_started

    def _start_another(self, num_failed: int) -> bool:
        """Start the next one; False where that fails, or none is wanted."""
        with self._changed:
            pause_s = min(2.0**num_failed, MOST_PAUSE_S) if num_failed else 0.0
            if self._changed.wait_for(lambda: self.is_closed, pause_s):
                return False
        _log.warning("the helper process %d, which tries guides, died; another starts", self.pid)
        try:
            helper = Helper(*self._made_of)
        except (UnavailableError, OSError) as error:
            _log.warning("%s", error)
            return False
        with self._changed:
            if self.is_closed:
                helper.stop()
                return False
            self._latest = helper
        return True
