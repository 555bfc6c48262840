"""The interpreter ends cleanly and soon, whatever is pending, and no failure stays unsaid."""

from __future__ import annotations

import subprocess
import sys

import pytest

from weft import _core

# The extension alone: a program without torch starts and ends at once.
PROLOGUE = """
import importlib.util, sys, threading, time
spec = importlib.util.spec_from_file_location("weft._core", sys.argv[1])
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
core.cpu_set_schedule(sys.argv[2], 3)
stream = core.stream_create(0)

def launch(fn, *args, **kwargs):
    core.launch_hostfunc(0, stream, True, fn, args, kwargs)

def capture(fn, *args):
    core.stream_begin_capture(0, stream)
    for i in range(20):
        launch(fn, *args)
    graph = core.stream_end_capture(0, stream)
    exec_ = core.graph_instantiate(0, graph)
    core.graph_destroy(0, graph)
    return exec_

def wait_in_background():
    threading.Thread(target=core.stream_synchronize, args=(0, stream), daemon=True).start()
    time.sleep(0.3)
"""

# Native tasks that take the GIL by themselves, each after one that naps for longer than the interpreter takes to
# end; the process goes on for half a second after it.
IN_FLIGHT_AFTER_THE_INTERPRETER = """
import ctypes
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.usleep, ctypes.c_void_p(500_000), None)
usleep = ctypes.cast(libc.usleep, ctypes.c_void_p).value
callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(id)
assert core.prepare_polling(0) is None
core.stream_begin_capture(0, stream)
for i in range(10):
    core.launch_native(0, stream, usleep, 250_000, None, "usleep", polled=POLLED)
    core.launch_native(0, stream, ctypes.cast(callback, ctypes.c_void_p).value, 0, callback, "id", polled=POLLED)
number = core.stream_capture_info(0, stream)[1]
exec_ = core.graph_instantiate(0, core.stream_end_capture(0, stream))
core.graph_launch(0, exec_, stream, core.polled_tasks(0, number))
wait_in_background()
"""

PROGRAMS = {
    "eager pending": """
for i in range(100):
    launch(print, end="")
""",
    "graph in flight": """
graph = capture(time.sleep, 0.001)
for i in range(20):
    core.graph_launch(0, graph, stream)
""",
    "blocked for ever": """
lock = threading.Lock()
lock.acquire()
core.graph_launch(0, capture(lock.acquire), stream)
wait_in_background()
""",
    "sleeping over the end": """
launch(time.sleep, 2.3)
wait_in_background()
""",
    "busy callbacks": """
def spin():
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass
for i in range(50):
    launch(spin)
wait_in_background()
""",
    "polled tasks in flight": """
import ctypes
nap = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: time.sleep(0.002))
assert core.prepare_polling(0) is None
core.stream_begin_capture(0, stream)
for i in range(20):
    core.launch_native(0, stream, ctypes.cast(nap, ctypes.c_void_p).value, 0, nap, "nap", polled=True)
number = core.stream_capture_info(0, stream)[1]
graph = core.stream_end_capture(0, stream)
exec_ = core.graph_instantiate(0, graph)
for i in range(20):
    core.graph_launch(0, exec_, stream, core.polled_tasks(0, number))
wait_in_background()
""",
    "polled tasks after the interpreter": "POLLED = True\n" + IN_FLIGHT_AFTER_THE_INTERPRETER,
    "native tasks after the interpreter": "POLLED = False\n" + IN_FLIGHT_AFTER_THE_INTERPRETER,
    "polled task that never returns": """
import ctypes
assert core.prepare_polling(0) is None
sleep = ctypes.cast(ctypes.CDLL(None).sleep, ctypes.c_void_p).value
core.stream_begin_capture(0, stream)
core.launch_native(0, stream, sleep, 3600, None, "sleep", polled=True)
graph = core.stream_end_capture(0, stream)
core.graph_launch(0, core.graph_instantiate(0, graph), stream, 1)
wait_in_background()
""",
    "graph in a cycle": """
class Graph:
    def __del__(self, destroy=core.graph_exec_destroy):
        destroy(0, self.exec_)
graph = Graph()
graph.graph = graph
graph.exec_ = capture(id, graph)
""",
}


def run(program: str, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROLOGUE + program, _core.__file__, *args],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["inline", "threads", "random"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_ends(name: str, schedule: str) -> None:
    done = run(PROGRAMS[name], schedule)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.slow
def test_the_program_keeps_its_exit_code() -> None:
    assert run(PROGRAMS["blocked for ever"] + "sys.exit(7)", "threads").returncode == 7


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["inline", "threads", "random"])
def test_what_nobody_asked_for_is_printed_with_its_traceback(schedule: str) -> None:
    done = run(
        """
def explode(): raise ValueError("unheard")
launch(explode)
core.stream_synchronize(0, stream)
""",
        schedule,
    )
    assert done.returncode == 0
    assert "ValueError: unheard" in done.stderr
    assert "in explode" in done.stderr
    assert "not raised before the program ended" in done.stderr
