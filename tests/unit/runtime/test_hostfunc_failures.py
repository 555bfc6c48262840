"""What callbacks raise: kept, raised once, and what is skipped because of it."""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest
import torch

import weft
import weft.runtime.cpu as cuda
from weft import _core, launch_hostfunc
from weft.errors import HostFuncError
from weft.runtime.scope import FailureScope


@pytest.fixture(params=["inline", "threads", "random"], autouse=True)
def schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    cuda.set_schedule(request.param, seed=11)
    yield
    cuda.synchronize()
    cuda.set_schedule("inline")


def fail(error: BaseException) -> None:
    raise error


def fail_with(text: str) -> None:
    """For graphs: an exception kept in a payload would refer through its traceback to the graph."""
    raise ValueError(text)


def wait(stream: cuda.Stream) -> None:
    """Wait without raising what callbacks raised."""
    _core.stream_synchronize(0, stream.handle)


RAISERS: dict[str, Callable[[cuda.Stream, cuda.CUDAGraph], None]] = {
    "check": lambda stream, graph: weft.check(),
    "synchronize": lambda stream, graph: cuda.synchronize(),
    "stream.synchronize": lambda stream, graph: stream.synchronize(),
    "launch_hostfunc": lambda stream, graph: stream.hostfunc(print),
    "launch": lambda stream, graph: stream.launch(print),
    "replay": lambda stream, graph: graph.replay(),
    "capture": lambda stream, graph: cuda.graph(graph, stream=stream).__enter__(),
}


@pytest.mark.parametrize("raiser", RAISERS)
def test_it_is_raised_once_by_whatever_comes_next(raiser: str) -> None:
    stream, graph = cuda.Stream(), cuda.CUDAGraph()
    with cuda.graph(graph, stream=stream):
        launch_hostfunc(id, 0)
    error = KeyError("lost")
    stream.hostfunc(fail, error)
    wait(stream)
    with pytest.raises(KeyError) as caught:
        RAISERS[raiser](stream, graph)
    assert caught.value is error
    frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert frames[-1] == "fail"
    assert "test_hostfunc_failures.fail" in error.__notes__[0]
    weft.check()
    cuda.synchronize()


@pytest.mark.parametrize("schedule", ["inline", "threads"], indirect=True)
def test_later_host_functions_of_the_stream_are_skipped_and_device_nodes_run() -> None:
    ran: list[str] = []
    x = torch.zeros(1)
    stream, other, all_launched = cuda.Stream(), cuda.Stream(), threading.Event()
    stream.hostfunc(all_launched.wait, 60)
    stream.hostfunc(ran.append, "before")
    stream.hostfunc(fail, ValueError("bad"))
    stream.hostfunc(ran.append, "after")
    stream.launch(x.add_, 1)
    other.hostfunc(ran.append, "other")
    all_launched.set()
    wait(stream)
    wait(other)
    assert sorted(ran) == ["before", "other"]
    assert x.item() == 1
    with pytest.raises(ValueError, match="bad"):
        stream.synchronize()
    stream.hostfunc(ran.append, "again")
    stream.synchronize()
    assert ran[-1] == "again"


def test_the_rest_of_the_replay_is_skipped_and_the_next_replay_runs() -> None:
    ran: list[int] = []
    x = torch.zeros(1)
    stream, side, graph = cuda.Stream(), cuda.Stream(), cuda.CUDAGraph()
    start = cuda.Event()

    def fail_on_first() -> None:
        ran.append(0)
        if len(ran) == 1:
            raise RuntimeError("first replay")

    with cuda.graph(graph, stream=stream):
        launch_hostfunc(fail_on_first)
        stream.record(start)
        side.wait(start)
        side.hostfunc(ran.append, 1)
        side.launch(x.add_, 1)
        stream.wait_stream(side)
        stream.hostfunc(ran.append, 2)
    with cuda.stream(stream):
        graph.replay()
        wait(stream)
        assert ran == [0]
        with pytest.raises(RuntimeError, match="first replay"):
            graph.replay()
        graph.replay()
    cuda.synchronize()
    assert ran == [0, 0, 1, 2]
    assert x.item() == 2


def test_a_failing_device_function_skips_host_functions_but_not_device_nodes() -> None:
    ran: list[str] = []
    x, index, one = (
        torch.zeros(1),
        torch.tensor([7]),
        torch.ones(1),
    )  # an index that is none shows when it is used
    stream, graph = cuda.Stream(), cuda.CUDAGraph()
    with cuda.graph(graph, stream=stream):
        stream.launch(x.index_add_, 0, index, one)
        stream.hostfunc(ran.append, "host")
        stream.launch(x.add_, 1)
    with cuda.stream(stream):
        graph.replay()
    with pytest.raises((IndexError, RuntimeError), match=r"out of range|out of bounds"):
        cuda.synchronize()
    assert ran == []
    assert x.item() == 1


def test_a_launched_function_that_raises_ends_the_capture() -> None:
    stream, graph = cuda.Stream(), cuda.CUDAGraph()
    with pytest.raises(ValueError, match="kernel"), cuda.graph(graph, stream=stream):
        stream.launch(fail_with, "kernel")


def test_the_others_are_notes_on_the_first() -> None:
    graphs = [cuda.CUDAGraph() for _ in range(3)]
    streams = [cuda.Stream() for _ in graphs]
    for i, (stream, graph) in enumerate(zip(streams, graphs, strict=True)):
        with cuda.graph(graph, stream=stream):
            launch_hostfunc(fail_with, f"number {i}")
    for stream, graph in zip(streams, graphs, strict=True):
        _core.graph_launch(0, graph.handle, stream.handle)
    for stream in streams:
        wait(stream)
    with pytest.raises(ValueError, match="number") as caught:
        weft.check()
    report = "".join(traceback.format_exception(caught.value))
    for i in range(3):
        assert f"number {i}" in report
    assert report.count("also raised") == 2
    weft.check()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_exceptions_that_end_programs_are_kept_too(error: BaseException) -> None:
    stream = cuda.Stream()
    stream.hostfunc(fail, error)
    with pytest.raises(type(error)) as caught:
        stream.synchronize()
    assert caught.value is error


def native(counter: ctypes.c_int) -> tuple[int, object]:
    """Address of a C function that counts its calls; Python in this test, native to weft."""
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        lambda data: setattr(counter, "value", counter.value + 1)
    )
    return ctypes.cast(callback, ctypes.c_void_p).value or 0, callback


def test_native_tasks_are_skipped_only_if_they_say_so() -> None:
    stream, graph = cuda.Stream(), cuda.CUDAGraph()
    kept, skipped = ctypes.c_int(), ctypes.c_int()
    with cuda.graph(graph, stream=stream):
        stream.hostfunc(fail_with, "bad")
        for counter, skippable in ((kept, False), (skipped, True)):
            function, owner = native(counter)
            _core.launch_native(0, stream.handle, function, 0, owner, "count", skippable)
    with cuda.stream(stream):
        graph.replay()
    wait(stream)
    assert (kept.value, skipped.value) == (1, 0)
    with pytest.raises(ValueError, match="bad"):
        weft.check()


def test_what_failed_in_a_scope_is_raised_in_it_only() -> None:
    stream, scope = cuda.Stream(), FailureScope()
    with scope:
        stream.hostfunc(fail, ValueError("inside"))
        wait(stream)
    weft.check()
    cuda.Stream().hostfunc(id, 1)
    with scope, pytest.raises(ValueError, match="inside"):
        weft.check()


def test_a_cpp_exception_is_kept_too() -> None:
    throw = ctypes.cast(ctypes.CDLL("libstdc++.so.6")._ZSt17__throw_bad_allocv, ctypes.c_void_p).value or 0
    stream = cuda.Stream()
    _core.launch_native(0, stream.handle, throw, 0, None, "throw")
    with pytest.raises(HostFuncError, match=r"throw: std::bad_alloc"):
        stream.synchronize()
    weft.check()


def test_what_is_not_callable_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="callable, not int"):
        launch_hostfunc(3)  # type: ignore[arg-type]


def test_a_native_task_needs_a_function() -> None:
    with pytest.raises(ValueError, match="address"):
        _core.launch_native(0, cuda.Stream().handle, 0, 0, None, "nothing")


def test_failures_of_one_runtime_do_not_stop_the_other() -> None:
    stream = cuda.Stream()
    stream.hostfunc(fail, HostFuncError("cpu"))
    wait(stream)
    if _core.cuda_unavailable_reason() is None:
        _core.check(1)
    with pytest.raises(HostFuncError, match="cpu"):
        _core.check(0)
