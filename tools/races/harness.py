"""Tests whether the quick runs notice a missing call.

Each call is removed in a separate process, forked before any work. It makes the runs one after another until one
differs from the unchanged program's.
"""

from __future__ import annotations

import os
import pickle
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

IDLE_S = 15
"""A process that uses no CPU time for this many seconds counts as waiting forever."""
WHOLE_S = 120
"""The CPU seconds after which a run of the unchanged program counts as endless."""
MOST_S = 10
"""A run counts as endless after this many CPU seconds, plus four times those of the unchanged program."""

Run = Callable[[], Iterator[Any]]
Change = tuple[str, Callable[[], object], Sequence[Run]]
"""The name of a change, the function that makes it, and the order of the runs that look for it."""


@dataclass(frozen=True)
class Noticed:
    """The first run that differs, with a description and the `seconds` until then. `run` is None if none differs."""

    run: str | None
    how: str
    seconds: float


@dataclass(frozen=True)
class Whole:
    """The values that a run of the unchanged program yields, and its CPU time."""

    values: list[str]
    cpu_s: float


def expected(runs: Sequence[Run]) -> dict[Run, Whole]:
    """Make each run of the unchanged program in a separate process, and return its results."""

    def whole(run: Run) -> Whole:
        _bound(WHOLE_S)
        began = time.process_time()
        return Whole([_seen(value) for value in run()], time.process_time() - began)

    ((_, answer),) = forked([("the whole program", lambda: [whole(run) for run in runs])], 1)
    if isinstance(answer, str):
        raise AssertionError(f"the whole program does not run: {answer}")
    return dict(zip(runs, answer, strict=True))


def notice(
    runs: Sequence[Run], whole: dict[Run, Whole], change: Callable[[], object]
) -> tuple[str | None, str]:
    """Apply the change to this process. Returns the first run that differs, with a description."""
    change()
    for run in runs:
        _bound(MOST_S + 4 * whole[run].cpu_s)
        try:
            for place, (value, found) in enumerate(zip(whole[run].values, map(_seen, run()), strict=True)):
                if found != value:
                    return run.__name__, f"answer {place} is {_from_difference(found, value)}"
        except BaseException as error:
            return run.__name__, f"{type(error).__name__}: {error}".splitlines()[0]
    return None, ""


def notice_all(
    runs: Sequence[Run], changes: Sequence[Change], processes: int
) -> Iterator[tuple[str, Noticed]]:
    """Call `notice` for many changes, each in a separate process, `processes` at a time."""
    whole = expected(runs)

    def job(change: Callable[[], object], order: Sequence[Run]) -> tuple[str | None, str, float]:
        began = time.monotonic()
        return *notice(order, whole, change), time.monotonic() - began

    jobs = [(name, partial(job, change, order)) for name, change, order in changes]
    for name, answer in forked(jobs, processes):
        yield name, Noticed("a process", answer, 0.0) if isinstance(answer, str) else Noticed(*answer)


def forked(jobs: Sequence[tuple[str, Callable[[], Any]]], processes: int) -> Iterator[tuple[str, Any]]:
    """Yield the result of each job, or a description if its process died."""
    waiting, running = list(jobs)[::-1], dict[int, tuple[str, int]]()
    computed: dict[int, tuple[float, float]] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            name, call = waiting.pop()
            running.update([_start(name, call)])
        ready, _, _ = select.select(list(running), [], [], 2.0)
        for _, pid in running.values():
            _end_if_idle(pid, computed)
        for end in ready:
            name, pid = running.pop(end)
            with os.fdopen(end, "rb") as answer:
                data = answer.read()
            _, status = os.waitpid(pid, 0)
            if data:
                yield name, pickle.loads(data)
            else:
                hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGKILL, signal.SIGXCPU)
                yield name, "it hangs" if hung else f"it ended with status {status}"


def _end_if_idle(pid: int, computed: dict[int, tuple[float, float]]) -> None:
    """Kill a process that has used no CPU time for `IDLE_S`. `computed` holds the ticks of each process, and the time
    at which they last grew."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return
    ticks, now = float(fields[11]) + float(fields[12]), time.monotonic()
    before, since = computed.setdefault(pid, (ticks, now))
    if ticks > before:
        computed[pid] = ticks, now
    elif now - since > IDLE_S:
        os.kill(pid, signal.SIGKILL)


def _start(name: str, call: Callable[[], Any]) -> tuple[int, tuple[str, int]]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return reading, (name, pid)
    try:
        os.close(reading)
        devnull = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(devnull, stream)
        answer = call()
    except BaseException:
        answer = traceback.format_exc()
    try:
        data = memoryview(pickle.dumps(answer))
        while data:
            data = data[os.write(writing, data) :]
        os.close(writing)
        sys.stdout.flush()
    finally:
        os._exit(0)  # weft's threads may wait for an event that was never recorded


def _bound(cpu_s: float) -> None:
    """End this process (SIGXCPU) after this many more CPU seconds."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + cpu_s) + 1, most))


def _seen(value: Any) -> str:
    return repr(value)


def _from_difference(found: str, whole: str) -> str:
    """Return both texts from shortly before their first difference."""
    at = max(next((i for i, (a, b) in enumerate(zip(found, whole, strict=False)) if a != b), 0) - 40, 0)
    return f"…{found[at : at + 120]}… and was …{whole[at : at + 120]}…"
