"""The watchdog: a callback that can't get the GIL is reported although no Python can run."""

from __future__ import annotations

import subprocess
import sys

import pytest

import weft
from weft import _core
from weft.errors import InputError

# A main thread that holds the GIL in a C call for as long as a callback that needs it is pending.
STUCK = """
import ctypes, sys, threading, time
import weft, weft.runtime.cpu as cuda
from weft import _core, hostfunc
weft.runtime.set_watchdog(0.5)
cuda.set_schedule("threads")
stream = cuda.Stream()

@hostfunc
def grammar_work():
    print("ran at last")

def bystander():
    threading.Event().wait()

threading.Thread(target=bystander, daemon=True).start()
sleep = ctypes.PyDLL(None).usleep  # a PyDLL call keeps the GIL

def hold_the_gil():
    # Native work in front of the callback, so that it can't get the GIL while the launch lets go of it.
    delay = ctypes.cast(sleep, ctypes.c_void_p).value
    _core.launch_native(0, stream.handle, delay, 300_000, None, "delay")
    with cuda.stream(stream):
        grammar_work()
    sleep(4_000_000)

hold_the_gil()
cuda.synchronize()
"""


def test_it_names_the_callback_and_prints_every_stack() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ran at last" in done.stdout
    assert "__main__.grammar_work (cpu driver) has waited" in done.stderr
    assert "in hold_the_gil" in done.stderr
    assert "in bystander" in done.stderr
    # Repeated when the wait has doubled, not at each of some thirty looks.
    assert done.stderr.count("has waited") < 8


def test_none_switches_it_off() -> None:
    program = STUCK.replace("set_watchdog(0.5)", "set_watchdog(None)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert done.stderr == ""


def test_the_limit_is_positive() -> None:
    with pytest.raises(InputError, match="positive"):
        weft.runtime.set_watchdog(0)
    _core.check()
