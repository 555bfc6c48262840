"""The helper process of `trial.py`: for each connection that it is given, a child that compiles one guide.

A child has a time limit that the kernel keeps (an alarm, which ends it wherever it is), a limit of memory beyond what
the helper has, and the kernel's preference should memory run out. It ends with the helper, and the helper ends when its
socket is closed, so that none outlives the process that asked.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pickle
import random
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from weft.errors import GuideError
from weft.grammar.base import CompiledGuide
from weft.grammar.guide import Guide
from weft.grammar.limits import CompileLimits, check_memory
from weft.grammar.tokenizer import Vocabulary
from weft.grammar.xgrammar import XGrammarBackend

PR_SET_PDEATHSIG = 1
WALK_STEPS = 32
WALK_TIME_S = 0.5


def serve(fd: int, vocabulary_file: str) -> None:
    """Answer on the socket `fd` until it is closed. Runs in a process of its own, on its only thread."""
    control = socket.socket(fileno=fd)
    backend = XGrammarBackend(Vocabulary.load(vocabulary_file), threads=1)
    backend.compile(Guide.json())  # XGrammar's cache has the common parts then, and every child with it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets children that ended
    gc.collect()
    gc.freeze()
    control.sendall(b"R")
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        if os.fork() == 0:
            control.close()
            _child(socket.socket(fileno=descriptors[0]), backend)
        os.close(descriptors[0])


def _child(connection: socket.socket, backend: XGrammarBackend) -> None:
    """Try one guide and answer; never returns."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        with connection.makefile("rb") as job:
            guide, limits = pickle.loads(job.read())
        _restrict(limits)
        try:
            try_guide(backend, guide, limits)
            error = None
        except GuideError as raised:
            error = str(raised)
            if "bad_alloc" in error:
                error = f"the guide takes more than {limits.memory_bytes >> 20} MiB to compile; simplify it"
        connection.sendall(json.dumps({"error": error}).encode())
    finally:
        os._exit(0)  # no clean-up of what is the helper's


def _restrict(limits: CompileLimits) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limits.time_s / 2)
    with open("/proc/self/statm") as statm:
        in_use = int(statm.read().split()[0]) * resource.getpagesize()
    most = in_use + limits.memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")


def try_guide(backend: XGrammarBackend, guide: Guide, limits: CompileLimits) -> None:
    """Compile a guide and walk a little way through it. Raises `GuideError` where it takes too much."""
    compiled = backend.compile(guide)
    check_memory(compiled.memory_bytes, limits)
    for seconds in _step_times(compiled):
        if seconds > limits.mask_time_s:
            raise GuideError(
                f"a mask of the guide takes {seconds:.2f} s; at most {limits.mask_time_s:g} s are allowed "
                "(CompileLimits.mask_time_s)"
            )


def _step_times(compiled: CompiledGuide) -> Iterator[float]:
    """Seconds of a CPU that each step of a random walk takes; a short walk where steps are long."""
    matcher, rng = compiled.matcher(), random.Random(0)
    row = np.zeros(-(-compiled.vocab_size // 32), dtype=np.int32)
    begin = time.thread_time()
    for _ in range(WALK_STEPS):
        row[:] = 0
        start = time.thread_time()
        is_masked = matcher.fill(row)
        yield time.thread_time() - start
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[: compiled.vocab_size]
        allowed = bits.nonzero()[0] if is_masked else np.arange(compiled.vocab_size)
        if not len(allowed) or time.thread_time() - begin > WALK_TIME_S:
            return
        start = time.thread_time()
        matcher.accept(int(rng.choice(allowed)))
        yield time.thread_time() - start
        if matcher.is_terminated():
            return
