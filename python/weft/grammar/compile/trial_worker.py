"""The helper process of `trial.py`: for each connection that it is given, a child that compiles one guide.

A child has a time limit of the processor's time that the kernel keeps (an alarm, which ends it wherever it is), one of
the time in which it is not stopped that a thread keeps, a limit of memory beyond what the helper has, a stack smaller
than that of the compile in earnest, and the kernel's preference should memory run out. It ends with the helper, and the
helper ends when its socket is closed, so that none outlives the process that asked.

A child writes an empty line when it begins, a line of JSON before each library that it tries, so that the asking
process knows which one it died of, and one for the verdict, followed by what is to be built (`prepared.py`). Of a child
that failed the helper writes a line: by which signal it ended (0: by none), and the seconds of a CPU that it had.
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
WAITING = 1.8
"""So many times what a child may take of a CPU it may take in all, pauses left out."""


@dataclass(frozen=True)
class Job:
    """One trial: within `time_s` seconds, without the libraries in `refused` (why, by name). `closes`: how its
    answers end is tried, too."""

    guide: Guide
    limits: CompileLimits
    time_s: float
    closes: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Helper:
    """What every child has: the vocabulary, and the backend by its name."""

    vocabulary: Vocabulary
    name: str
    backend: Backend


def serve(fd: int, vocabulary_file: str, backend: str, limits: CompileLimits) -> None:
    """Answer on the socket `fd` until it is closed. Runs in a separate process, on its only thread."""
    control = socket.socket(fileno=fd)
    with suppress(AttributeError):  # one arena for all threads: others count with all that they reserve
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    vocabulary = Vocabulary.load(vocabulary_file)
    made = make_backend(backend, vocabulary, limits, untrusted=True, threads=1)
    helper = Helper(vocabulary, backend, made)
    for library in _libraries(backend, made).values():
        with suppress(GuideError):  # a library may have no such guides
            library.compile(Guide.json())  # what it makes once is there then, and every child has it
    gc.collect()
    gc.freeze()
    Forks(control, helper).serve()


class Forks:
    """Makes a child for each connection that comes over `control`, and says of those that failed how."""

    def __init__(self, control: socket.socket, helper: Helper) -> None:
        self._control, self._helper = control, helper
        self._running: dict[int, socket.socket] = {}  # by the child's number
        self._ended, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        self._wakes = wakes  # stays open

    def serve(self) -> None:
        """Until `control` is closed."""
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
        signal.set_wakeup_fd(-1)
        for other in (self._control, self._ended, self._wakes, *self._running.values()):
            other.close()
        _child(connection, self._helper)

    def _reap(self) -> None:
        while self._running:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            with self._running.pop(pid) as connection, suppress(OSError):
                if status:
                    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                    tell(connection, {"signal": ended_by, "cpu_s": usage.ru_utime + usage.ru_stime})


def _libraries(name: str, backend: Backend) -> Mapping[str, Backend]:
    return backend.libraries if isinstance(backend, Chooser) else {name: backend}


class Trying(Parts):
    """Compiles a job's guide as if in earnest, each library by itself, with its memory and its first steps; keeps what
    was compiled of each guide within."""

    def __init__(self, helper: Helper, job: Job, connection: socket.socket) -> None:
        super().__init__(helper.vocabulary, helper.backend, job.limits)
        self._libraries = _libraries(helper.name, helper.backend)
        self._name = helper.name
        self._job = job
        self._connection = connection
        self._parts: dict[str, Part] = {}
        self._last = Part(self._name, None)
        self._memory_bytes = 0

    def run(self) -> tuple[dict[str, Any], bytes]:
        """The verdict, and the texts that follow it."""
        compiled = self.compile_part(self._job.guide)
        if self._job.closes:
            prepare_closing(compiled, None if self._last.prepared is None else self._last.prepared.text)
        rows, texts = packed(self._parts)
        return {"parts": rows, "memory_bytes": self._memory_bytes}, texts

    def compile_leaf(self, guide: Guide) -> CompiledGuide:
        """Compile a guide with one of the libraries. Raises `GuideError`."""
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
        tell(self._connection, {"trying": name, "of": len(self._libraries)})
        library = self._libraries[name]
        prepared, make = None, partial(library.compile, guide)
        if isinstance(library, Preparing):
            prepared = library.prepare(guide)
            make = partial(library.build, guide, prepared)
        before = allocated_bytes()
        compiled = make()
        check_memory(compiled.memory_bytes, self._limits)
        try:
            stacks.call(lambda: walk(compiled, self.vocabulary, self._limits), stacks.STEP_BYTES)
        except GuideStateError as error:  # this library's; another may do better
            raise GuideError(str(error)) from None
        gc.collect()
        self._memory_bytes += max(0, allocated_bytes() - before)
        check_memory(self._memory_bytes, self._limits)
        self._last = Part(name, prepared)
        return compiled


def tell(connection: socket.socket, line: Mapping[str, Any]) -> None:
    """Write a line of JSON."""
    connection.sendall(json.dumps(line).encode() + b"\n")


def _child(connection: socket.socket, helper: Helper) -> None:
    """Try one guide and answer; never returns."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        connection.sendall(b"\n")  # it begins
        with connection.makefile("rb") as sent:
            job: Job = pickle.loads(sent.read())
        _restrict(job)
        threading.current_thread().name = "weft-trial"
        texts = b""
        try:
            trying = Trying(helper, job, connection)
            verdict, texts = stacks.call(trying.run, stacks.TRIAL_BYTES)
        except MemoryError:
            verdict = {"error": _too_large(job.limits)}
        except Exception as raised:
            error = str(raised)
            if "bad_alloc" in error or "too much memory" in error:
                error = _too_large(job.limits)
            verdict = {"error": error}
        signal.setitimer(signal.ITIMER_PROF, 0)  # it is done: what is left is up to the reader
        _core.end_process_after(0)
        tell(connection, {"error": None, **verdict})
        connection.sendall(texts)
        connection.close()
        status = 0
    finally:
        os._exit(status)  # no clean-up of what is the helper's


def _too_large(limits: CompileLimits) -> str:
    return f"the guide takes more than {limits.memory_bytes >> 20} MiB to compile; simplify it"


def _restrict(job: Job) -> None:
    for number in (signal.SIGALRM, signal.SIGPROF, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, job.time_s)  # of a CPU: a busy machine is not the guide's fault
    _core.end_process_after(WAITING * job.time_s)  # first, as its thread's stack is not the guide's memory
    with open("/proc/self/statm") as statm:
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    most = in_use + job.limits.memory_bytes + stacks.TRIAL_BYTES + stacks.STEP_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


class _Mallinfo(ctypes.Structure):
    _fields_ = [("numbers", ctypes.c_size_t * 10)]


MAPPED, IN_USE = 4, 7  # of its numbers: hblkhd and uordblks


def allocated_bytes() -> int:
    """What this process has allocated and not freed, in all of malloc's arenas; 0 where the C library does not say."""
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return 0
    mallinfo.restype = _Mallinfo
    numbers = mallinfo().numbers
    return int(numbers[MAPPED] + numbers[IN_USE])
