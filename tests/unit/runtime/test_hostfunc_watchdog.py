"""The watchdog: a callback that can't get the GIL, to begin or to go on, is reported although no Python can run."""

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


def run(program: str) -> str:
    """What a program that ends well writes to stderr."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "ran at last" in done.stdout
    return done.stderr


@pytest.mark.slow
def test_it_names_the_callback_and_prints_every_stack() -> None:
    report = run(STUCK)
    assert "__main__.grammar_work (cpu driver) has waited" in report
    assert "in hold_the_gil" in report
    assert "in bystander" in report
    # Repeated when the wait has doubled, not at each of some thirty looks.
    assert report.count("has waited") < 8


# The process is stopped for longer than the limit while a callback waits for a part of it. The GIL is kept by many
# short sleeps: a long one would be over when the process goes on.
PAUSED = STUCK.replace("set_watchdog(0.5)", "set_watchdog(2.5)").replace(
    "    sleep(4_000_000)",
    """\
    import os, subprocess
    sys.setswitchinterval(100)
    stop = f"sleep 0.6; kill -STOP {os.getpid()}; sleep 4; kill -CONT {os.getpid()}"
    subprocess.Popen(["/bin/sh", "-c", stop])
    for _ in range(24):
        sleep(50_000)""",
)


@pytest.mark.slow
def test_a_pause_of_the_process_is_nobodys_wait() -> None:
    assert run(PAUSED) == ""


# A callback that lets go of the GIL in the midst of its work, and can't get it back.
STUCK_INSIDE = """
import ctypes, threading, time
import weft, weft.runtime.cpu as cuda
from weft import hostfunc
weft.runtime.set_watchdog(0.5)
cuda.set_schedule("threads")
stream = cuda.Stream()
is_inside = threading.Event()

@hostfunc
def grammar_work():
    is_inside.set()
    time.sleep(HOW_LONG)
    print("ran at last")

def hold_the_gil():
    with cuda.stream(stream):
        grammar_work()
    is_inside.wait()
    HOLD

hold_the_gil()
cuda.synchronize()
"""
HELD = STUCK_INSIDE.replace("HOW_LONG", "0.2").replace("HOLD", "ctypes.PyDLL(None).usleep(3_000_000)")
FREE = STUCK_INSIDE.replace("HOW_LONG", "3").replace("HOLD", "time.sleep(3)")


@pytest.mark.slow
def test_it_names_a_callback_that_waits_to_get_the_gil_back() -> None:
    report = run(HELD)
    assert "__main__.grammar_work (cpu driver) is inside Python, and the GIL has not been free for" in report
    assert "in hold_the_gil" in report
    assert "in grammar_work" in report


@pytest.mark.slow
def test_a_callback_that_takes_long_is_not_reported_while_others_get_the_gil() -> None:
    assert run(FREE) == ""


@pytest.mark.slow
@pytest.mark.parametrize("program", [STUCK, HELD], ids=["to begin", "to go on"])
def test_none_switches_it_off(program: str) -> None:
    assert run(program.replace("set_watchdog(0.5)", "set_watchdog(None)")) == ""


def test_the_limit_is_positive() -> None:
    with pytest.raises(InputError, match="positive"):
        weft.runtime.set_watchdog(0)
    _core.check()
