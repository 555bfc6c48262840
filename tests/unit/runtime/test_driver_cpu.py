"""The CPU driver as Python sees it: handles, errors, graphs, schedules and traces."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from weft import _core
from weft.errors import DriverError

CPU, CUDA = 0, 1


@pytest.fixture
def stream() -> Iterator[int]:
    stream = _core.stream_create(CPU)
    yield stream
    _core.stream_destroy(CPU, stream)


@pytest.fixture(params=["inline", "threads", "random", "ahead"])
def schedule(request: pytest.FixtureRequest) -> Iterator[str]:
    _core.ctx_synchronize(CPU)
    _core.cpu_set_schedule(request.param, 1)
    yield request.param
    _core.ctx_synchronize(CPU)
    _core.cpu_set_schedule("inline")


def copy(dst: np.ndarray, src: np.ndarray, stream: int) -> None:
    _core.memcpy_async(CPU, dst.ctypes.data, src.ctypes.data, src.nbytes, stream)


def test_copies_are_in_stream_order(schedule: str, stream: int) -> None:
    a, b, c = np.arange(8), np.zeros(8, int), np.zeros(8, int)
    copy(b, a, stream)
    copy(c, b, stream)
    _core.stream_synchronize(CPU, stream)
    assert c.tolist() == a.tolist()
    assert _core.stream_query(CPU, stream)


def test_events_order_streams(schedule: str, stream: int) -> None:
    other, event = _core.stream_create(CPU), _core.event_create(CPU)
    a, b, c = np.arange(8), np.zeros(8, int), np.zeros(8, int)
    copy(b, a, stream)
    _core.event_record(CPU, event, stream)
    _core.stream_wait_event(CPU, other, event)
    copy(c, b, other)
    _core.stream_synchronize(CPU, other)
    assert c.tolist() == a.tolist()
    assert _core.event_query(CPU, event)
    _core.event_synchronize(CPU, event)
    _core.event_destroy(CPU, event)
    _core.stream_destroy(CPU, other)


def test_a_graph_is_captured_described_and_replayed(schedule: str, stream: int) -> None:
    a, b, c = np.arange(4), np.zeros(4, int), np.zeros(4, int)
    assert _core.stream_capture_info(CPU, stream) == (0, 0, 0)
    _core.stream_begin_capture(CPU, stream)
    assert _core.stream_is_capturing(CPU, stream)
    status, id_, captured = _core.stream_capture_info(CPU, stream)
    assert status == 1
    assert id_ > 0
    _core.label_next("first copy")
    copy(b, a, stream)
    copy(c, b, stream)
    graph = _core.stream_end_capture(CPU, stream)
    assert graph == captured
    assert not _core.stream_is_capturing(CPU, stream)
    nodes = _core.graph_nodes(CPU, graph)
    assert [node[1:] for node in nodes] == [("memcpy", "first copy"), ("memcpy", "")]
    assert _core.graph_edges(CPU, graph) == [(nodes[0][0], nodes[1][0])]
    exec_ = _core.graph_instantiate(CPU, graph)
    _core.graph_destroy(CPU, graph)
    _core.ctx_synchronize(CPU)
    assert c.tolist() == [0, 0, 0, 0]
    for start in (5, 9):
        a[:] = np.arange(start, start + 4)
        _core.graph_launch(CPU, exec_, stream)
        _core.stream_synchronize(CPU, stream)
        assert c.tolist() == a.tolist()
    _core.graph_exec_destroy(CPU, exec_)


def test_elapsed_time_is_in_milliseconds(stream: int) -> None:
    start, end = _core.event_create(CPU, 0), _core.event_create(CPU, 0)
    _core.event_record(CPU, start, stream)
    _core.event_record(CPU, end, stream)
    _core.event_synchronize(CPU, end)
    assert 0 <= _core.event_elapsed_time(CPU, start, end) < 60_000
    for event in (start, end):
        _core.event_destroy(CPU, event)


def test_a_failed_call_names_itself_and_what_to_do(stream: int) -> None:
    _core.stream_begin_capture(CPU, stream)
    with pytest.raises(DriverError, match="while a stream is captured") as e:
        _core.stream_synchronize(CPU, stream)
    assert str(e.value).startswith("cuStreamSynchronize: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900): ")
    assert (e.value.name, e.value.code) == ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", 900)
    with pytest.raises(DriverError, match="capture again") as e:
        _core.stream_end_capture(CPU, stream)
    assert e.value.code == 901


def test_another_thread_can_not_end_the_capture(stream: int) -> None:
    _core.stream_begin_capture(CPU, stream)
    seen: list[int] = []

    def end() -> None:
        try:
            _core.stream_end_capture(CPU, stream)
        except DriverError as error:
            seen.append(error.code)

    thread = threading.Thread(target=end)
    thread.start()
    thread.join()
    assert seen == [908]
    _core.graph_destroy(CPU, _core.stream_end_capture(CPU, stream))


def test_destroyed_handles_are_refused() -> None:
    stream = _core.stream_create(CPU)
    _core.stream_destroy(CPU, stream)
    with pytest.raises(DriverError, match="CUDA_ERROR_INVALID_HANDLE"):
        _core.stream_synchronize(CPU, stream)


def test_the_schedule_is_named_and_changes_only_when_idle(stream: int) -> None:
    with pytest.raises(ValueError, match="inline"):
        _core.cpu_set_schedule("fast")
    a, b = np.arange(4), np.zeros(4, int)
    copy(b, a, stream)
    with pytest.raises(DriverError, match="synchronize first"):
        _core.cpu_set_schedule("threads")
    _core.stream_synchronize(CPU, stream)
    _core.cpu_set_schedule("inline")


def test_a_trace_has_what_ran(stream: int) -> None:
    a, b = np.arange(4), np.zeros(4, int)
    _core.cpu_trace_start()
    _core.label_next("copy")
    copy(b, a, stream)
    _core.stream_synchronize(CPU, stream)
    ((label, kind, number, _thread, begin, end),) = _core.cpu_trace_stop()
    assert (label, kind) == ("copy", "memcpy")
    assert number > 0
    assert 0 < begin <= end
    assert _core.cpu_trace_stop() == []


def test_a_driver_is_there_or_says_why_not() -> None:
    assert _core.driver_version(CPU) >= 12000
    with pytest.raises(DriverError, match="0 is the CPU's and 1 is CUDA's"):
        _core.driver_version(2)
    reason = _core.cuda_unavailable_reason()
    if reason is None:
        assert _core.driver_version(CUDA) >= 12000
    else:
        with pytest.raises(DriverError) as e:
            _core.driver_version(CUDA)
        assert reason in str(e.value)
