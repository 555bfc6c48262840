"""What others took of the processor is told apart from what a side took itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from peers.disturbance import Disturbance, busy_s, own_s


def compute(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_what_a_process_computes_is_its_own() -> None:
    before, all_before = own_s(os.getpid()), busy_s()
    compute(0.3)
    assert 0.25 <= own_s(os.getpid()) - before <= 0.6
    assert busy_s() - all_before >= 0.2


@pytest.mark.slow
def test_another_process_is_a_disturbance() -> None:
    watched = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    disturbance = Disturbance(watched.pid)
    compute(0.5)
    assert disturbance.cores() > 0.1
    watched.communicate(b"\n")
