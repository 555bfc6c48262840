"""The CPU time of a side, with its children, is told apart from that of other processes."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from peers.disturbance import Disturbance, busy_s, session_s

COMPUTE = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
IN_A_CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {COMPUTE!r}])\n"


def compute(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.parametrize("code", [COMPUTE, IN_A_CHILD], ids=["itself", "child"])
def test_a_session_computes(code: str) -> None:
    """A side's process waits for its next request, so it is there when its time is read."""
    all_before = busy_s()
    program = f"{code}print(flush=True)\ninput()"
    side = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with side:
        assert side.stdout is not None and side.stdout.readline()
        took = session_s(side.pid)
        side.communicate(b"\n", timeout=30)
    assert 0.25 <= took <= 3
    assert busy_s() - all_before >= 0.2


@pytest.mark.slow
def test_another_process_is_a_disturbance() -> None:
    watched = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True
    )
    disturbance = Disturbance(watched.pid)
    compute(0.5)
    assert disturbance.cores() > 0.1
    watched.communicate(b"\n", timeout=30)
