"""Trial compiles in another process: what XGrammar would do with a guide, where it can be killed.

XGrammar has no limit on time or memory and can't be stopped, and what it compiled can't be handed over in
reasonable time. So a stranger's guide is first compiled in a helper process, for the verdict alone; what passes is
compiled here. The helper (`precheck.py`) has read the vocabulary once and makes a child for each trial, which ends by
itself when its time is over or its memory is used up. It ends with this process, however that ends.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

from weft.errors import GuideError
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits
from weft.grammar.tokenizer import Vocabulary

START = "import sys; sys.path[:] = {path!r}; from weft.grammar.precheck import serve; serve({fd}, {file!r})"
START_TIME_S = 120.0  # importing on a machine that is busy


class Trial:
    """A helper process that tries guides for one vocabulary.

    It starts at once and is ready seconds later; `wait` waits for that. `close` ends it.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._is_closed = False
        self._helper = _Helper(vocabulary)

    def wait(self) -> None:
        """Returns when the helper takes guides, or can't be started; `run` tells which."""
        with self._lock:
            self._helper.is_ready()

    def run(self, guide: Guide, limits: CompileLimits) -> None:
        """Raises `GuideError` for a guide that does not compile within half of `limits.time_s`, or takes more memory.
        May be called by several threads at once.
        """
        job = pickle.dumps((guide, limits))
        start = time.monotonic()
        answer = self._ask(job, limits)
        if not answer and not self._is_closed and self._helper.has_ended():
            start = time.monotonic()
            answer = self._ask(job, limits)  # somebody ended the helper: another one says
        if not answer:
            raise GuideError(self._why(time.monotonic() - start, limits))
        error = json.loads(answer)["error"]
        if error is not None:
            raise GuideError(error)

    def close(self) -> None:
        """End the helper and what it tries."""
        self._is_closed = True  # before the lock: whoever waits for the helper holds it
        self._helper.stop()
        with self._lock:
            self._helper.stop()

    @property
    def pid(self) -> int:
        """The helper's process."""
        return self._helper.process.pid

    def _ask(self, job: bytes, limits: CompileLimits) -> bytes:
        """What a child of the helper answers; nothing where it ended before."""
        with self._connect() as connection:
            connection.settimeout(limits.time_s + 10.0)  # the child ends itself before that
            try:
                connection.sendall(job)
                connection.shutdown(socket.SHUT_WR)
                return b"".join(iter(lambda: connection.recv(1 << 16), b""))
            except OSError:
                return b""

    def _why(self, elapsed_s: float, limits: CompileLimits) -> str:
        if self._is_closed:
            return "the compiler was closed"
        if elapsed_s >= limits.time_s / 2:
            return (
                f"the guide did not compile in {limits.time_s / 2:g} s of trial, half of CompileLimits.time_s; "
                "simplify it"
            )
        return (
            "the guide's trial compile ended without an answer: it took more than the "
            f"{limits.memory_bytes >> 20} MiB of CompileLimits.memory_bytes, or XGrammar crashed; simplify it"
        )

    def _connect(self) -> socket.socket:
        """The way to a child of its own."""
        ours, theirs = socket.socketpair()
        with theirs:
            for _ in range(2):
                with self._lock:
                    if self._is_closed:
                        break
                    if self._helper.is_ready() and self._helper.send(theirs):
                        return ours
                    self._helper.stop()
                    self._helper = _Helper(self._vocabulary)
        ours.close()
        raise GuideError("the process that tries guides of strangers could not be started, or was closed")


class _Helper:
    """One helper process, starting or started."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_TIME_S)
        self._ready = False
        handle, name = tempfile.mkstemp(prefix="weft-vocabulary-", suffix=".json")
        os.close(handle)
        vocabulary.dump(name)
        command = START.format(path=sys.path, fd=theirs.fileno(), file=name)
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
            raise GuideError(f"the process that tries guides of strangers does not start: {error}") from error
        self.stop = weakref.finalize(self, _stop, self.process, self._control, name)

    def is_ready(self) -> bool:
        """Waits for it; False where it ended."""
        if not self._ready:
            try:
                self._ready = self._control.recv(1) == b"R"
            except OSError:
                return False
        return self._ready and self.process.poll() is None

    def has_ended(self) -> bool:
        """Whether the process ended, or does so now."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=0.2)
        return self.process.poll() is not None

    def send(self, connection: socket.socket) -> bool:
        """Give it a connection; False where it ended meanwhile."""
        try:
            socket.send_fds(self._control, [b"T"], [connection.fileno()])
        except OSError:
            return False
        return True


def _stop(process: subprocess.Popen[bytes], control: socket.socket, vocabulary_file: str) -> None:
    with suppress(OSError):
        control.shutdown(socket.SHUT_RDWR)  # wakes who waits for it
    process.kill()
    process.wait()
    control.close()
    Path(vocabulary_file).unlink(missing_ok=True)
