"""Native tasks that a thread polls for, in the place of host nodes: the same order, failures and release."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

from support.runtimes import runtime_under, runtimes
from weft import _core
from weft.runtime import NativeTask, Runtime, cpu, get
from weft.runtime.dump import dump_graph

pytestmark = pytest.mark.usefixtures("quick_collection")

SCHEDULES = ("inline", "threads", "ahead-0", "ahead-1", *(f"random-{seed}" for seed in range(6)))


@pytest.fixture(params=runtimes(*SCHEDULES))
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with runtime_under(request.param) as runtime:
        missing = runtime.prepare_polling()
        if missing is not None:
            assert request.param == "cuda"
            pytest.skip(missing)
        yield runtime


class Called:
    """A native task that calls `fn`, and the threads that it ran on."""

    def __init__(self, fn: Callable[[], object], polled: bool = True) -> None:
        self.threads: set[int] = set()

        def run(_: int | None) -> None:
            self.threads.add(threading.get_native_id())
            fn()

        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(run)
        address = ctypes.cast(self._function, ctypes.c_void_p).value
        assert address is not None
        self.task = NativeTask("called", address, 0, self, polled=polled)


def append_to(x: torch.Tensor, digit: int) -> None:
    """Makes the order of calls visible in a number."""
    x.mul_(10).add_(digit)


def test_polled_tasks_keep_the_order(runtime: Runtime) -> None:
    main, side = runtime.stream(), runtime.stream()
    fork, join = runtime.event(), runtime.event()
    x = torch.zeros(1, dtype=torch.int64, device=runtime.device)
    host, seen = runtime.pinned((1,), torch.int64), []
    back = runtime.pinned((1,), torch.int64)

    def answer() -> None:
        seen.append(int(host))
        back.fill_(int(host) + 1)

    first, second = Called(answer), Called(lambda: seen.append(-1))
    runtime.publish()
    with runtime.capture(main) as graph:
        main.launch(append_to, x, 1)
        main.copy(host, x)
        main.record(fork)
        side.wait(fork)
        side.hostfunc(second.task)
        main.hostfunc(first.task)
        main.copy(x, back)
        side.record(join)
        main.wait(join)
    expected = 0
    for _ in range(5):
        graph.replay()
        expected = expected * 10 + 2
    main.synchronize()
    assert x.tolist() == [expected]
    assert [value for value in seen if value > 0] == [int("2" * i + "1") for i in range(5)]
    assert seen.count(-1) == 5
    assert first.threads == second.threads and threading.get_native_id() not in first.threads
    graph.close()


def test_outside_a_capture_it_is_a_host_function(runtime: Runtime) -> None:
    stream, ran = runtime.stream(), []
    called = Called(lambda: ran.append(1))
    stream.hostfunc(called.task)
    stream.synchronize()
    assert ran == [1]


def test_a_graph_has_three_operations_for_it(runtime: Runtime) -> None:
    if runtime.device.type == "cuda":
        pytest.importorskip("cuda.bindings", reason="listing a CUDA graph needs cuda-python")
    stream = runtime.stream()
    polled, node = Called(lambda: None), Called(lambda: None, polled=False)

    def issue() -> None:
        stream.hostfunc(polled.task)
        stream.hostfunc(node.task)

    dump = dump_graph(runtime, stream, issue)
    assert [kind for kind, _ in dump.nodes] == ["batch_mem_op"] * 3 + ["host"]
    assert dump.edges == [(0, 1), (1, 2), (2, 3)]


def test_a_graph_closed_in_flight_runs_to_its_end(runtime: Runtime) -> None:
    stream, ran = runtime.stream(), []
    called = Called(lambda: ran.append(1))
    gone = weakref.ref(called)
    with runtime.capture(stream) as graph:
        for _ in range(3):
            stream.hostfunc(called.task)
    del called
    for _ in range(4):
        graph.replay()
    graph.close()
    stream.synchronize()
    assert len(ran) == 12
    for _ in range(100):  # destructors run on a thread of their own, some time after
        runtime.synchronize()
        gc.collect()
        if gone() is None:
            break
        threading.Event().wait(0.02)
    assert gone() is None


def test_it_needs_the_gil_while_another_thread_waits(runtime: Runtime) -> None:
    """A matcher in Python does; waits let go of it."""
    streams, ran = [runtime.stream() for _ in range(3)], []
    graphs = []
    for stream in streams:
        called = Called(lambda: ran.append(sum(range(1000))))
        with runtime.capture(stream) as graph:
            for _ in range(5):
                stream.hostfunc(called.task)
        graphs.append((stream, graph))

    def work(stream: cpu.Stream, graph: cpu.CpuGraph) -> None:
        for _ in range(5):
            graph.replay()
            stream.synchronize()

    threads = [threading.Thread(target=work, args=pair) for pair in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ran) == 3 * 5 * 5
    for _, graph in graphs:
        graph.close()


def test_more_tasks_than_there_is_room_for_are_host_nodes() -> None:
    """Room is made before a capture, not in it: the rest of this one has host nodes."""
    runtime = get("cpu")
    assert runtime.prepare_polling() is None
    stream, address = runtime.stream(), ctypes.cast(ctypes.CDLL(None).labs, ctypes.c_void_p).value or 0
    task = NativeTask("nothing", address, 0, None, polled=True)
    before = _core.hostfunc_stats()["run"]
    graphs = []
    for _ in range(2):
        with runtime.capture(stream) as graph:
            for _ in range(6000):
                stream.hostfunc(task)
        graph.replay()
        graphs.append(graph)
    stream.synchronize()
    assert _core.hostfunc_stats()["run"] == before + 12000
    for graph in graphs:
        graph.close()


FORKS = """
import ctypes, os, sys
from weft import _core as core

assert core.prepare_polling(0) is None
stream, ran = core.stream_create(0), []
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: ran.append(os.getpid()))

def capture():
    core.stream_begin_capture(0, stream)
    for _ in range(3):
        core.launch_native(0, stream, ctypes.cast(function, ctypes.c_void_p).value, 0, function, "task", polled=True)
    number = core.stream_capture_info(0, stream)[1]
    exec_ = core.graph_instantiate(0, core.stream_end_capture(0, stream))
    assert core.polled_tasks(0, number) == 3
    return exec_

def replay(exec_):
    for _ in range(10):
        core.graph_launch(0, exec_, stream, 3)
    core.stream_synchronize(0, stream)
    count = len(ran)
    assert set(ran) == {os.getpid()}, ran
    ran.clear()
    return count

before = capture()
assert replay(before) == 30
child = os.fork()
assert replay(before) == 30
assert core.prepare_polling(0) is None and replay(capture()) == 30
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.slow
def test_a_fork_polls_for_itself() -> None:
    # From 3.12 on Python warns of every fork with threads, which is what this is about.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
