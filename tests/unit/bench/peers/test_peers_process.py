"""The runner and a side's process: every reply, and every way in which none comes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peers.process import SideError, SideProcess
from peers.protocol import Answer, Config, Prompt, Request

ROOT = Path(__file__).parents[4]
DUMMY = ROOT / "tests" / "support" / "peers" / "dummy_side.py"
GUIDED, FREE = Prompt([1, 2, 3], {"const": "x"}), Prompt([4])
REQUEST = Request([GUIDED, FREE], 7, exact=False)

pytestmark = pytest.mark.slow
Start = Callable[..., SideProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts dummy sides, and closes them."""
    started: list[SideProcess] = []

    def start(seconds: float = 30.0) -> SideProcess:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}
        side = SideProcess([sys.executable, str(DUMMY)], env, ROOT, tmp_path / "side.log", seconds)
        started.append(side)
        return side

    yield start
    for side in started:
        side.close()


def config(drafter: str = "none") -> Config:
    return Config("model", "float32", 2, 1, 64, drafter)


def state(side: SideProcess) -> str:
    """The process's state as the kernel names it: "T" is stopped."""
    return Path(f"/proc/{side.pid}/stat").read_text().rpartition(") ")[2][0]


def test_what_is_asked_is_answered(start: Start) -> None:
    side = start()
    side.open(config())
    side.prepare([GUIDED, FREE])
    answers = side.answer(REQUEST)
    assert side.versions == {"dummy": "1"} and answers.seconds == 0.5
    assert answers.answers == [Answer(3, '"x"', 0.25, True), Answer(7, "2 prepared", 0.25, False)]


def test_what_libraries_print_is_no_reply(start: Start, tmp_path: Path) -> None:
    side = start()
    side.open(config("prints"))
    assert len(side.answer(REQUEST).answers) == len(side.answer(REQUEST).answers) == 2
    assert (tmp_path / "side.log").read_text().count("not") == 2


def test_a_side_is_stopped_while_nobody_asks(start: Start) -> None:
    side = start()
    side.open(config())
    end = time.monotonic() + 60
    while state(side) != "T" and time.monotonic() < end:
        time.sleep(0.01)
    assert state(side) == "T"
    assert side.answer(REQUEST).answers


def test_an_error_is_told_and_the_side_goes_on(start: Start) -> None:
    side = start()
    with pytest.raises(SideError, match="ValueError: no such drafter"):
        side.open(config("can't open"))
    side.open(config("fails"))
    with pytest.raises(SideError, match="RuntimeError: this fails"):
        side.answer(REQUEST)
    side.prepare([GUIDED])


@pytest.mark.parametrize(("how", "what"), [("ends", "process ended"), ("sleeps", "no reply within 0.5 s")])
def test_a_side_that_is_silent_is_given_up(start: Start, how: str, what: str) -> None:
    side = start()
    side.open(config(how))
    side.limit_s = 0.5
    with pytest.raises(SideError, match=what):
        side.answer(REQUEST)


def test_closing_ends_a_stopped_side(start: Start) -> None:
    side = start()
    side.open(config())
    side.close()
    assert side.process.returncode is not None
    side.close()  # again is fine
    with pytest.raises(SideError, match="it is closed"):
        side.answer(REQUEST)


def test_a_stopped_side_ends_with_its_runner(tmp_path: Path) -> None:
    """Also when the runner is killed and closes nothing."""
    code = (
        "import os, sys, time; from pathlib import Path; from peers.process import SideProcess\n"
        "from peers.protocol import Config\n"
        f"side = SideProcess([sys.executable, {str(DUMMY)!r}], os.environ, Path('.'), Path('side.log'), 30)\n"
        "side.open(Config('model', 'float32', 1, 1, 64))\n"
        "print(side.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}
    run = subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    process, end = Path(f"/proc/{int(run.stdout)}"), time.monotonic() + 60
    while _runs(process) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _runs(process)


def _runs(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
