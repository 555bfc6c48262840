"""The helper process of `trial.py`: for each connection that it receives, it forks a child that compiles one guide.

A child has these limits:

- CPU time: an interval timer of the kernel (SIGPROF) ends it wherever it is.
- Wall time, without the time in which the machine or the process is paused: a thread ends it.
- Memory beyond the helper's own (RLIMIT_AS). If the machine runs out of memory, the OOM killer takes the child first.
- Stack: half as much as in the real compile.

A child dies with the helper, and the helper ends when its socket is closed. So no child outlives the process that it
works for.

Protocol: a child writes an empty line when it begins. Before it tries a library, it writes a line of JSON with the
library's name, so that the reader knows where it died. The last line has the verdict, and the prepared texts follow it
(`parts.packed`). For a child that failed, the helper adds a line with the signal that ended it (0: none) and its CPU
seconds.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pickle
import resource
import select
import signal
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weft import _core
from weft.errors import GuideError, GuideStateError
from weft.grammar.base import Backend, Chooser, CompiledGuide, Preparing
from weft.grammar.compile import stacks
from weft.grammar.compile.parts import Part, Parts, digest, make_backend, packed
from weft.grammar.compile.walk import walk
from weft.grammar.guide import Guide
from weft.grammar.kinds.closing import prepare_closing
from weft.grammar.limits import CompileLimits, check_memory
from weft.grammar.vocabulary.tokenizer import Vocabulary

PR_SET_PDEATHSIG = 1
M_ARENA_MAX = -8
MAX_WALL_FACTOR = 1.8
"""A child's limit of wall time without pauses, as a multiple of its CPU time limit."""


@dataclass(frozen=True)
class TrialJob:
    """One trial, with a limit of `time_s` CPU seconds. `refused` maps the libraries that must not be tried to the
    reasons. With `closes` the shortest endings are computed, too."""

    guide: Guide
    limits: CompileLimits
    time_s: float
    closes: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Shared:
    """The state that every child inherits by fork: the vocabulary, and the backend with its name."""

    vocabulary: Vocabulary
    name: str
    backend: Backend


def serve(fd: int, vocabulary_file: str, backend: str, limits: CompileLimits) -> None:
    """Run the helper process: answer on the socket `fd` until it is closed. The process stays single-threaded, so that
    it can fork."""
    control = socket.socket(fileno=fd)
    # One malloc arena for all threads: RLIMIT_AS counts all the address space that another arena would reserve.
    with suppress(AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    vocabulary = Vocabulary.load(vocabulary_file)
    shared = Shared(vocabulary, backend, make_backend(backend, vocabulary, limits, untrusted=True, threads=1))
    # The first compile fills each library's caches for the vocabulary, so that every child inherits them.
    for library in _libraries(shared).values():
        with suppress(GuideError):  # a library may not take JSON schemas
            library.compile(Guide.json())
    gc.collect()
    gc.freeze()
    ForkServer(control, shared).serve()


class ForkServer:
    """Forks a child for each connection that arrives over `control`, and reports how failed children ended."""

    def __init__(self, control: socket.socket, shared: Shared) -> None:
        self._control, self._shared = control, shared
        self._running: dict[int, socket.socket] = {}  # the connection of each child, by process id
        # SIGCHLD writes to this pair, so that `select` returns when a child ends.
        self._ended, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Serve until `control` is closed."""
        self._control.sendall(b"R")
        while True:
            ready, _, _ = select.select([self._control, self._ended], [], [])
            if self._ended in ready:
                self._ended.recv(4096)
                self._reap()
            if self._control in ready:
                data, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
                if not data:
                    return
                self._fork(socket.socket(fileno=descriptors[0]))

    def _fork(self, connection: socket.socket) -> None:
        pid = os.fork()
        if pid:
            self._running[pid] = connection
            return
        # The child must not keep the helper's sockets open, because others detect the helper's end by their closing.
        signal.set_wakeup_fd(-1)
        for other in (self._control, self._ended, self._wakes, *self._running.values()):
            other.close()
        _child(connection, self._shared)

    def _reap(self) -> None:
        while self._running:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            with self._running.pop(pid) as connection, suppress(OSError):
                if status:
                    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                    send_line(connection, {"signal": ended_by, "cpu_s": usage.ru_utime + usage.ru_stime})


def _libraries(shared: Shared) -> Mapping[str, Backend]:
    backend = shared.backend
    return backend.libraries if isinstance(backend, Chooser) else {shared.name: backend}


class TryingParts(Parts):
    """Compiles a job's guide like the real compile, but tries the libraries one after another. It measures the memory
    of each guide that a library compiles, walks through it, and keeps a `Part` of it."""

    def __init__(self, shared: Shared, job: TrialJob, connection: socket.socket) -> None:
        super().__init__(shared.vocabulary, shared.backend, job.limits)
        self._libraries = _libraries(shared)
        self._name = shared.name
        self._job = job
        self._connection = connection
        self._parts: dict[str, Part] = {}
        self._last = Part(self._name, None)
        self._memory_bytes = 0

    def run(self) -> tuple[dict[str, Any], bytes]:
        """Compile the job's guide. Returns the verdict and the texts that follow it on the wire."""
        compiled = self.compile_part(self._job.guide)
        if self._job.closes:
            prepare_closing(compiled, None if self._last.prepared is None else self._last.prepared.text)
        rows, texts = packed(self._parts)
        return {"parts": rows, "memory_bytes": self._memory_bytes}, texts

    def compile_leaf(self, guide: Guide) -> CompiledGuide:
        """Compile a guide with the first library that can, and keep the outcome. Raises `GuideError`."""
        self.check_leaf(guide)
        if isinstance(self._backend, Chooser):
            compiled = self._backend.choose(guide, self._attempt)
        else:
            compiled = self._attempt(self._name, guide)
        self._parts[digest(guide)] = self._last
        return compiled

    def _attempt(self, name: str, guide: Guide) -> CompiledGuide:
        if name in self._job.refused:
            raise GuideError(self._job.refused[name])
        send_line(self._connection, {"trying": name, "of": len(self._libraries)})
        library = self._libraries[name]
        prepared, build = None, partial(library.compile, guide)
        if isinstance(library, Preparing):
            prepared = library.prepare(guide)
            build = partial(library.build, guide, prepared)
        before = allocated_bytes()
        compiled = build()
        check_memory(compiled.memory_bytes, self._limits)
        try:
            stacks.call(lambda: walk(compiled, self.vocabulary, self._limits), stacks.STEP_BYTES)
        except GuideStateError as error:  # as a GuideError, so that the next library is tried
            raise GuideError(str(error)) from None
        gc.collect()
        self._memory_bytes += max(0, allocated_bytes() - before)
        check_memory(self._memory_bytes, self._limits)
        self._last = Part(name, prepared)
        return compiled


def send_line(connection: socket.socket, line: Mapping[str, Any]) -> None:
    """Write a line of JSON."""
    connection.sendall(json.dumps(line).encode() + b"\n")


def _child(connection: socket.socket, shared: Shared) -> None:
    """Try one guide and answer; never returns."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        connection.sendall(b"\n")  # this child begins
        with connection.makefile("rb") as stream:
            job: TrialJob = pickle.loads(stream.read())
        _restrict(job)
        threading.current_thread().name = "weft-trial"
        texts = b""
        try:
            trying = TryingParts(shared, job, connection)
            verdict, texts = stacks.call(trying.run, stacks.TRIAL_BYTES)
        except MemoryError:
            verdict = {"error": _too_large(job.limits)}
        except Exception as error:
            message = str(error)
            if "bad_alloc" in message or "too much memory" in message:
                message = _too_large(job.limits)
            verdict = {"error": message}
        # The work is done, so stop the timers: the time to send the answer depends on the reader.
        signal.setitimer(signal.ITIMER_PROF, 0)
        _core.end_process_after(0)
        send_line(connection, {"error": None, **verdict})
        connection.sendall(texts)
        connection.close()
        status = 0
    finally:
        os._exit(status)  # skips the atexit handlers inherited from the helper


def _too_large(limits: CompileLimits) -> str:
    return f"the guide takes more than {limits.memory_bytes >> 20} MiB to compile; simplify it"


def _restrict(job: TrialJob) -> None:
    for number in (signal.SIGALRM, signal.SIGPROF, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, job.time_s)  # CPU time: a busy machine is not the guide's fault
    # This starts a thread. Do it before the memory is measured, so that the thread's stack does not count.
    _core.end_process_after(MAX_WALL_FACTOR * job.time_s)
    with open("/proc/self/statm") as statm:
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    limit = in_use + job.limits.memory_bytes + stacks.TRIAL_BYTES + stacks.STEP_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


class _Mallinfo(ctypes.Structure):
    _fields_ = [("numbers", ctypes.c_size_t * 10)]


MAPPED, IN_USE = 4, 7  # the indices of hblkhd and uordblks


def allocated_bytes() -> int:
    """Return the bytes that malloc has given out and not got back, in all arenas; 0 if the C library has no
    `mallinfo2`."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo
    numbers = mallinfo().numbers
    return int(numbers[MAPPED] + numbers[IN_USE])
