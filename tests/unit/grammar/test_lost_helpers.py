"""The process that tries guides, killed and stopped at any time: no guide is refused for it, none waits for ever."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from support.grammar.grammars import small_vocabulary
from support.grammar.hostile import tower
from support.products import each_value
from weft.core.awake import cpu_seconds
from weft.errors import CapacityError, GuideError, UnavailableError
from weft.grammar import CompileLimits, Guide, GuideCompiler
from weft.grammar.base import CompiledGuide
from weft.grammar.compile import trial as trials
from weft.grammar.compile.trial import Trial

pytestmark = pytest.mark.slow

WAIT_S, BEGIN_S = 12.0, 1.0
SLOW = Guide.json_schema(tower(14))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[GuideCompiler]:
    monkeypatch.setattr("weft.grammar.compile.compiler.HELPER_WAIT_S", WAIT_S)
    monkeypatch.setattr(trials, "BEGIN_S", BEGIN_S)
    limits = CompileLimits(time_s=20)
    with GuideCompiler(small_vocabulary(), backend="xgrammar", untrusted=True, limits=limits) as made:
        yield made


def trial_of(compiler: GuideCompiler) -> Trial:
    assert isinstance(compiler._trial, Trial)
    return compiler._trial


def wait_for_helper(compiler: GuideCompiler) -> None:
    """However long it takes to start on a machine that is busy with other tests."""
    trial_of(compiler).wait(time.monotonic() + 120)


def send(number: int) -> Callable[[GuideCompiler], None]:
    """Send the helper a signal."""
    return lambda compiler: os.kill(trial_of(compiler).pid, number)


def child_of(compiler: GuideCompiler) -> int:
    """A child that the helper has now."""
    pid, deadline = trial_of(compiler).pid, time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                return int(found[0])
        time.sleep(0.001)
    raise AssertionError("the helper has no child")


def to_child(number: int) -> Callable[[GuideCompiler], None]:
    """Send a signal to the child that tries a guide, once it is at work."""

    def end(compiler: GuideCompiler) -> None:
        child = child_of(compiler)
        while cpu_seconds(child) < 0.2:
            time.sleep(0.01)
        os.kill(child, number)

    return end


def innocent(compiler: GuideCompiler, name: str) -> CompiledGuide:
    return compiler.submit(Guide.regex(f"[a-z]{{1,9}}{name}")).result(timeout=60)


def wait_for_none_abandoned(compiler: GuideCompiler) -> None:
    deadline = time.monotonic() + 60
    while compiler.num_abandoned:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@each_value
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGABRT, signal.SIGSEGV])
@pytest.mark.parametrize("when", ["starting", "idle", "idle, and again", "idle, many guides"])
def test_a_guide_that_meets_a_lost_helper_is_compiled_or_unavailable(
    compiler: GuideCompiler, number: signal.Signals, when: str
) -> None:
    """Within the time to wait for a helper and its own; afterwards it is compiled, and nothing is remembered."""
    if when != "starting":
        wait_for_helper(compiler)
    lost = trial_of(compiler).pid
    send(number)(compiler)
    start = time.monotonic()
    guides = [Guide.regex(f"a{i}") for i in range(8 if "many" in when else 1)]
    futures = [compiler.submit(guide) for guide in guides]
    if "again" in when:
        time.sleep(0.3)
        with contextlib.suppress(OSError):
            send(number)(compiler)
    for future in futures:
        with contextlib.suppress(UnavailableError):
            future.result(timeout=60)
    assert time.monotonic() - start < WAIT_S + compiler.limits.time_s + 60
    wait_for_none_abandoned(compiler)
    if number == signal.SIGSTOP and when == "starting":
        trial_of(compiler)._helpers.lose(trial_of(compiler)._helpers._latest)  # as after START_STALL_S
    wait_for_helper(compiler)
    assert trial_of(compiler).pid != lost
    for guide in guides:
        compiler.submit(guide).result(timeout=60)


ENDS: dict[str, tuple[Callable[[GuideCompiler], None], type[Exception], str]] = {
    "the helper, killed": (send(signal.SIGKILL), GuideError, "trial"),
    "the helper, stopped": (send(signal.SIGSTOP), GuideError, "trial"),
    "its child, killed": (to_child(signal.SIGKILL), UnavailableError, "killed from outside"),
    "its child, as out of time on a busy machine": (to_child(signal.SIGALRM), UnavailableError, "too busy"),
    "its child, crashed": (to_child(signal.SIGSEGV), GuideError, "crashed"),
    "its child, aborted": (to_child(signal.SIGABRT), GuideError, "crashed"),
    "its child, out of its time": (to_child(signal.SIGPROF), GuideError, r"did not compile in 4 s of trial"),
}


@pytest.mark.parametrize("name", ENDS)
def test_whose_fault_it_is_where_a_trial_ends(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A slow guide, and what ends its trial. Only its own faults are its refusal, which is remembered."""
    monkeypatch.setattr(trials, "BEGIN_S", BEGIN_S)
    end, expected, text = ENDS[name]
    limits = CompileLimits(time_s=8)
    with GuideCompiler(small_vocabulary(), backend="xgrammar", untrusted=True, limits=limits) as compiler:
        wait_for_helper(compiler)
        future = compiler.submit(SLOW)
        child_of(compiler)
        end(compiler)
        with pytest.raises((expected, UnavailableError), match=f"{text}|too busy|did not answer"):
            future.result(timeout=60)
        with compiler._lock:
            remembered = compiler._refusals.get(SLOW)
        assert (remembered is not None) == (not isinstance(future.exception(), UnavailableError))
        if expected is UnavailableError:
            assert isinstance(future.exception(), UnavailableError)
        innocent(compiler, "after")
        wait_for_none_abandoned(compiler)


def test_others_go_on_where_one_child_is_stopped(compiler: GuideCompiler) -> None:
    wait_for_helper(compiler)
    stopped = compiler.submit(SLOW)
    os.kill(child_of(compiler), signal.SIGSTOP)
    for i in range(3):
        innocent(compiler, f"beside{i}")
    with pytest.raises((UnavailableError, GuideError)):
        stopped.result(timeout=60)


def test_a_helper_that_is_lost_while_idle_is_there_again_before_it_is_asked(compiler: GuideCompiler) -> None:
    wait_for_helper(compiler)
    lost = trial_of(compiler).pid
    os.kill(lost, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while trial_of(compiler).pid == lost or trial_of(compiler)._helpers._ready is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    innocent(compiler, "again")


def test_no_guide_waits_longer_than_it_says_for_a_helper_that_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue of them behind one another, too."""
    monkeypatch.setattr("weft.grammar.compile.compiler.HELPER_WAIT_S", 1.0)
    with GuideCompiler(small_vocabulary(), untrusted=True) as compiler:
        send(signal.SIGSTOP)(compiler)
        start = time.monotonic()
        futures = [compiler.submit(Guide.regex(f"waits{i}"), client=i % 3) for i in range(30)]
        for future in futures:
            with pytest.raises(UnavailableError, match="is starting; send the guide again later"):
                future.result(timeout=60)
        assert time.monotonic() - start < 20  # one after another they would wait for 30 s
        assert not len(compiler._refusals) and not compiler._jobs
        send(signal.SIGCONT)(compiler)
        wait_for_helper(compiler)
        innocent(compiler, "now")


def test_a_compiler_is_closed_while_its_helper_is_stopped() -> None:
    for waits in (False, True):
        compiler = GuideCompiler(small_vocabulary(), untrusted=True)
        if waits:
            wait_for_helper(compiler)
        send(signal.SIGSTOP)(compiler)
        future = compiler.submit(Guide.regex("waits"))
        time.sleep(0.2)
        compiler.close()
        with pytest.raises(GuideError, match="was closed"):
            future.result(timeout=60)


def test_too_many_guides_of_a_client_are_unavailable_not_wrong() -> None:
    limits = CompileLimits(max_waiting=2)
    with GuideCompiler(small_vocabulary(), untrusted=True, limits=limits) as compiler:
        futures: list[Future[Any]] = [compiler.submit(Guide.regex(f"many{i}"), client=1) for i in range(9)]
        errors = [future.exception(timeout=60) for future in futures]
        refused = [error for error in errors if error is not None]
        assert refused and all(isinstance(error, UnavailableError) for error in refused)
        assert issubclass(UnavailableError, CapacityError)


def test_threads_that_use_one_trial_while_it_is_killed(compiler: GuideCompiler) -> None:
    """Eight threads ask, and the helper is killed three times: whoever is told to ask again is served in the end."""
    wait_for_helper(compiler)
    failed: list[BaseException] = []

    def ask(number: int) -> None:
        for i in range(6):
            for _ in range(20):
                try:
                    compiler.submit(Guide.regex(f"thread{number}x{i}"), client=number).result(timeout=60)
                    break
                except UnavailableError:
                    time.sleep(0.2)
                except BaseException as error:
                    failed.append(error)
                    return
            else:
                failed.append(AssertionError("it was never served"))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.5)
        with contextlib.suppress(OSError):
            send(signal.SIGKILL)(compiler)
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    assert not failed


class Starting(trials.Helper):
    """A helper whose process runs this program instead of its own, and never reports that it is ready."""

    def __init__(self, program: str) -> None:
        self.ends = self._control, self.reports = socket.socketpair()
        self._control.settimeout(trials.START_STALL_S)
        self.process = subprocess.Popen([sys.executable, "-c", program])


@pytest.mark.parametrize(
    ("program", "starts"), [("while True: pass", True), ("import time; time.sleep(60)", False)]
)
def test_a_start_may_take_long_while_it_uses_the_cpu(
    monkeypatch: pytest.MonkeyPatch, program: str, starts: bool
) -> None:
    monkeypatch.setattr(trials, "START_STALL_S", 0.5)
    helper = Starting(program)
    try:
        # After four times the limit. A process that waits is given up before.
        ready = threading.Timer(2.0, lambda: helper.reports.send(b"R"))
        ready.start()
        assert helper.starts() is starts
        ready.cancel()
    finally:
        helper.process.kill()
        helper.process.wait()
        for end in helper.ends:
            end.close()


def test_a_wait_without_a_deadline_lasts_as_long_as_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "HELPER_WAIT_S", 0.01)
    trial = Trial(small_vocabulary(), "xgrammar")
    try:
        trial.wait()
        trial.wait(time.monotonic())  # raises unless the helper is ready now
    finally:
        trial.close()


def test_a_wait_ends_when_a_start_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "START", "raise SystemExit(1)")
    trial = Trial(small_vocabulary(), "xgrammar")
    try:
        with pytest.raises(UnavailableError, match="send the guide again later"):
            trial.wait()
    finally:
        trial.close()
