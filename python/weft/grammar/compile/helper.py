"""The helper process that tries guides (`precheck.py`), kept at work: one that ended, or does not answer, is replaced.

Who needs it waits no longer than he says, and never with a lock held: a process may be stopped, or take long to start
on a busy machine.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from weft.errors import GuideError, UnavailableError
from weft.grammar.limits import CompileLimits
from weft.grammar.vocabulary.tokenizer import Vocabulary

_log = logging.getLogger(__name__)

START = (
    "import sys; sys.path[:] = {path!r}; from weft.grammar.limits import CompileLimits; "
    "from weft.grammar.compile.precheck import serve; serve({fd}, {file!r}, {backend!r}, CompileLimits(**{limits!r}))"
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
