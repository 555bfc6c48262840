"""Trial compiles in another process: what a grammar library would do with a guide, where it can be killed.

A library's memory, its native stack and mostly its time have no limit that holds inside it; it can't be stopped,
and what it compiled can't be handed over in reasonable time. So a stranger's guide is first compiled in a helper
process, whichever library it goes to; what passes is compiled here, by the library that the trial settled for, from the
text that the trial prepared for it. The helper (`precheck.py`) has read the vocabulary once and makes a child for each
trial, which ends by itself when its time is over or its memory is used up. It ends with this process, however that
ends.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.awake import AwakeTimer, AwakeWatch
from weft.errors import GuideError
from weft.grammar.compile.precheck import WAITING, Job
from weft.grammar.compile.prepared import Part, unpacked
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits
from weft.grammar.vocabulary.tokenizer import Vocabulary

_log = logging.getLogger(__name__)

START = (
    "import sys; sys.path[:] = {path!r}; from weft.grammar.limits import CompileLimits; "
    "from weft.grammar.compile.precheck import serve; serve({fd}, {file!r}, {backend!r}, CompileLimits(**{limits!r}))"
)
START_TIME_S = 120.0  # importing on a machine that is busy


class TrialUnavailableError(GuideError):
    """No trial is available, which says nothing of the guide."""


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


class Trial:
    """A helper process that tries guides for one vocabulary with a backend of the registry, whose own bounds are
    `limits`.

    It starts at once and is ready seconds later; `wait` waits for that. `close` ends it.
    """

    def __init__(
        self, vocabulary: Vocabulary, backend: str = "auto", limits: CompileLimits | None = None
    ) -> None:
        self._made_of = (vocabulary, backend, limits or CompileLimits())
        self._lock = threading.Lock()
        self._is_closed = False
        self._helper = _Helper(*self._made_of)

    def wait(self) -> None:
        """Returns when the helper takes guides, or can't be started; `run` tells which."""
        with self._lock:
            self._helper.is_ready()

    def run(self, guide: Guide, limits: CompileLimits, closes: bool = False) -> Verdict:
        """Compile a guide in another process, and with `closes` also work out how its answers end. Raises `GuideError`
        for one that does not compile, or not within half of `limits.time_s`, or that takes more memory. May be called
        by several threads at once.

        Where a library takes too long, or crashes, a backend that has another may choose that.
        """
        job = Job(guide, limits, limits.time_s / 2, closes)
        try:
            return self._try(job)
        except _Died as died:
            if self._is_closed:
                raise TrialUnavailableError(str(died)) from None
            if died.library is None or died.of < 2:
                raise GuideError(str(died)) from None
            job = Job(guide, limits, limits.time_s / 4, closes, {died.library: str(died)})
        try:
            return self._try(job)
        except _Died as died:
            raise GuideError(str(died)) from None

    def close(self) -> None:
        """End the helper and what it tries."""
        self._is_closed = True  # before the lock: a thread that waits for the helper holds it
        self._helper.stop()
        with self._lock:
            self._helper.stop()

    @property
    def pid(self) -> int:
        """The helper's process."""
        return self._helper.process.pid

    def _try(self, job: Job) -> Verdict:
        sent = pickle.dumps(job)
        watch = AwakeWatch()
        said = self._ask(sent, job)
        if not isinstance(said, Verdict) and not self._is_closed and self._helper.has_ended():
            watch = AwakeWatch()
            said = self._ask(sent, job)  # the helper was ended from outside: another one says
        if isinstance(said, Verdict):
            return said
        if "parts" in said:  # it passed, and the child was ended while it sent them
            raise TrialUnavailableError("the process that tries guides of strangers was ended; try again")
        raise _Died(self._why(watch.seconds, job), said.get("trying"), said.get("of", 1))

    def _ask(self, sent: bytes, job: Job) -> Verdict | dict[str, Any]:
        """The verdict of a child of the helper, or the last that it said before it ended. Raises `GuideError` for a
        guide that does not pass."""
        with self._connect() as connection:
            said = bytearray()
            # The child ends itself before that.
            late = AwakeTimer(WAITING * job.time_s + 10.0, lambda: connection.shutdown(socket.SHUT_RDWR))
            with late, suppress(OSError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(1 << 20):
                    said += part
        last: dict[str, Any] = {}
        while "error" not in last and (end := said.find(b"\n")) >= 0:
            last = json.loads(said[:end])
            del said[: end + 1]
        if last.get("error") is not None:
            raise GuideError(last["error"])
        try:
            return Verdict(unpacked(last["parts"], bytes(said)), last["memory_bytes"])
        except (KeyError, ValueError):  # it ended before, or while it sent the texts
            return last

    def _why(self, elapsed_s: float, job: Job) -> str:
        if self._is_closed:
            return "the compiler was closed"
        if elapsed_s >= job.time_s:
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

    def _connect(self) -> socket.socket:
        """A connection to a new child."""
        ours, theirs = socket.socketpair()
        with theirs:
            for _ in range(2):
                with self._lock:
                    if self._is_closed:
                        break
                    if self._helper.is_ready() and self._helper.send(theirs):
                        return ours
                    _log.warning("the helper process %d, which tries guides, died; another starts", self.pid)
                    self._helper.stop()
                    self._helper = _Helper(*self._made_of)
        ours.close()
        raise TrialUnavailableError(
            "the process that tries guides of strangers could not be started, or was closed"
        )


class _Helper:
    """One helper process, starting or started."""

    def __init__(self, vocabulary: Vocabulary, backend: str, limits: CompileLimits) -> None:
        self._control, theirs = socket.socketpair()
        self._control.settimeout(START_TIME_S)
        self._ready = False
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
            raise TrialUnavailableError(
                f"the process that tries guides of strangers does not start: {error}"
            ) from error
        self.stop = weakref.finalize(self, _stop, os.getpid(), self.process, self._control, name)

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
