"""The time in which a process runs: stopwatches and timers that a pause of it stops."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import pytest

from support.pausing import pause_here
from weft.core.awake import AwakeTimer, AwakeWatch
from weft.grammar import Guide
from weft.grammar.base import CompiledGuide
from weft.grammar.compile.workers import Job, Workers
from weft.grammar.limits import CompileLimits


def test_a_stopwatch_stands_while_the_process_does() -> None:
    watch, began = AwakeWatch(), time.monotonic()
    pause_here(1.5)
    passed = time.monotonic() - began
    assert passed > 1.4
    at_pause = watch.seconds
    assert at_pause < passed - 1.0
    while watch.seconds <= at_pause:  # it goes on
        time.sleep(0.01)


def test_a_timer_rings_when_the_process_has_run_for_so_long() -> None:
    rung, watch = threading.Event(), AwakeWatch()
    with AwakeTimer(0.8, rung.set):
        pause_here(1.5)
        assert not rung.is_set() or watch.seconds > 0.7  # a slow start of the shell counts
        assert rung.wait(60)


def test_a_timer_that_is_cancelled_does_not_ring() -> None:
    rung = threading.Event()
    with AwakeTimer(0.1, rung.set) as timer:
        pass
    timer.join(60)
    assert not timer.is_alive() and not rung.is_set()


def run_for(seconds: float, limit: float, pause: float) -> int:
    """The status of a process that sleeps so long within a limit, with a pause in it."""
    program = (
        f"from weft import _core; import time; _core.end_process_after({limit}); print('R', flush=True); "
        f"time.sleep({seconds})"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"R\n"
    if pause:
        process.send_signal(signal.SIGSTOP)
        time.sleep(pause)
        process.send_signal(signal.SIGCONT)
    with process:
        return process.wait(60)


@pytest.mark.slow
def test_a_pause_does_not_end_the_process_of_a_trial() -> None:
    assert run_for(0.3, limit=2.0, pause=3.0) == 0
    assert run_for(30.0, limit=0.3, pause=0.0) == -signal.SIGALRM


def late_compiles(limits: CompileLimits, pause_s: float) -> list[Job]:
    """The late jobs of a compile. It ends behind a pause; without one it runs until it is late."""
    lock, late, began, is_done = threading.Condition(), list[Job](), threading.Event(), threading.Event()

    def work(job: Job) -> None:
        began.set()
        is_done.wait(60)
        with lock:
            job.stop_timer()

    def note(job: Job) -> None:
        late.append(job)
        is_done.set()

    workers = Workers(lock, limits, 1, prepare=lambda job: None, work=work, time_out=note)
    future: Future[CompiledGuide] = Future()
    with lock:
        workers.add(Job(Guide.json(), future), None)
    assert began.wait(60)
    if pause_s:
        pause_here(pause_s)
        is_done.set()
    with lock:
        workers.close()
    workers.join()
    return late


@pytest.mark.slow
def test_a_pause_counts_for_no_compile() -> None:
    assert not late_compiles(CompileLimits(time_s=2.5), pause_s=3.5)


def test_a_compile_that_runs_on_is_late() -> None:
    assert len(late_compiles(CompileLimits(time_s=0.2), pause_s=0.0)) == 1
