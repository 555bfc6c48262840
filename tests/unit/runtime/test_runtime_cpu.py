"""The CPU runtime's own rules: torch.cuda's names, capture, the current stream, traces, pinned rings."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import weft.runtime
import weft.runtime.cpu as cpu
from weft.errors import DriverError, GraphError, InputError, WeftError
from weft.runtime.buffers import DEPTH, PinnedRing
from weft.runtime.current import CPU, Current, current
from weft.trace import record_on, recording


@pytest.fixture(params=["inline", "threads", "random", "ahead"])
def schedule(request: pytest.FixtureRequest) -> Iterator[None]:
    cpu.set_schedule(request.param, seed=5)
    yield
    cpu.synchronize()
    cpu.set_schedule("inline")


def test_events_order_and_time() -> None:
    stream = cpu.Stream()
    begin, end = cpu.Event(enable_timing=True), cpu.Event(enable_timing=True)
    assert begin.query()
    with cpu.stream(stream):
        begin.record()
        stream.launch(sum, range(1000))
        end.record()
    end.synchronize()
    assert end.query()
    assert begin.elapsed_time(end) >= 0


@pytest.mark.usefixtures("schedule")
def test_a_wait_orders_streams() -> None:
    a, b = cpu.Stream(), cpu.Stream()
    x = torch.zeros(1)
    a.launch(x.add_, 1)
    event = a.record_event()
    b.wait_event(event)
    b.launch(x.mul_, 10)
    a.wait_stream(b)
    a.launch(x.add_, 2)
    cpu.synchronize()
    assert x.item() == 12


def test_the_current_stream_is_the_innermost_contexts() -> None:
    outer, inner = cpu.Stream(), cpu.Stream()
    assert cpu.current_stream().handle == cpu.default_stream().handle == 0
    with cpu.stream(outer):
        assert cpu.current_stream().handle == outer.handle
        with cpu.stream(None):
            assert cpu.current_stream().handle == outer.handle
        with cpu.stream(cpu.ExternalStream(inner)):
            assert current() == Current(CPU, inner.handle)
            seen: list[int] = []
            thread = threading.Thread(target=lambda: seen.append(cpu.current_stream().handle))
            thread.start()
            thread.join()
            assert seen == [0]
        assert cpu.current_stream().handle == outer.handle
    with pytest.raises(InputError, match="__cuda_stream__"):
        cpu.stream("outer")


def test_capturing_shows_in_the_current_stream() -> None:
    stream, graph = cpu.Stream(), cpu.CUDAGraph()
    assert not cpu.is_current_stream_capturing()
    with cpu.graph(graph, stream=stream):
        assert cpu.is_current_stream_capturing()
        assert cpu.current_stream().handle == stream.handle
    assert not stream.is_capturing()


@pytest.mark.parametrize(
    "op",
    [
        lambda x: x.add_(1),
        lambda x: x + 1,
        lambda x: x[0].item(),
        lambda x: x.copy_(torch.empty(4)),
        lambda x: torch.zeros(4),
    ],
)
def test_a_torch_op_outside_launch_during_capture_raises(op: object) -> None:
    assert callable(op)
    x, stream, graph = torch.ones(4), cpu.Stream(), cpu.CUDAGraph()
    with pytest.raises(GraphError, match=r"aten\..* ran outside launch"), cpu.graph(graph, stream=stream):
        op(x)
    assert torch.equal(x, torch.ones(4))
    assert not stream.is_capturing()
    with pytest.raises(GraphError, match="capture it first"):
        graph.replay()


def test_views_metadata_and_empty_allocations_are_allowed_in_capture() -> None:
    x, stream, graph = torch.zeros(4), cpu.Stream(), cpu.CUDAGraph()
    with cpu.graph(graph, stream=stream):
        stream.launch(x[1:3].view(2, 1).add_, 1)
        scratch = torch.empty_like(x)
        assert scratch.shape == x.t().shape
        stream.copy(scratch, x)
    graph.replay()
    cpu.synchronize()
    assert x.tolist() == scratch.tolist() == [0, 1, 1, 0]


@pytest.mark.usefixtures("schedule")
def test_work_of_other_streams_may_run_on_the_capturing_thread() -> None:
    x, other = torch.zeros(1), cpu.Stream()
    done = other.record_event()
    stream, graph = cpu.Stream(), cpu.CUDAGraph()
    for _ in range(20):
        other.launch(x.add_, 1)
        other.hostfunc(lambda: x.add_(1))
    with cpu.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(20):
            stream.launch(x.add_, 0)
    other.record(done)
    done.synchronize()
    assert x.item() == 40


COUNTER = torch.zeros(1)


def fork(stream: cpu.Stream, side: cpu.Stream, error: Exception | None = None) -> None:
    side.wait_event(stream.record_event())
    side.launch(COUNTER.add_, 1)
    if error is not None:
        raise error


def test_an_unjoined_fork_is_a_graph_error() -> None:
    stream, side, graph = cpu.Stream(), cpu.Stream(), cpu.CUDAGraph()
    with pytest.raises(GraphError, match="did not join"), cpu.graph(graph, stream=stream):
        fork(stream, side)
    cpu.synchronize()


def test_an_error_inside_a_capture_is_not_hidden_by_its_end() -> None:
    stream, side, graph = cpu.Stream(), cpu.Stream(), cpu.CUDAGraph()
    with pytest.raises(KeyError, match="mine"), cpu.graph(graph, stream=stream):
        fork(stream, side, KeyError("mine"))
    assert not stream.is_capturing()
    cpu.synchronize()


def test_driver_errors_carry_the_drivers_name() -> None:
    stream, graph = cpu.Stream(), cpu.CUDAGraph()
    with pytest.raises(DriverError) as caught, cpu.graph(graph, stream=stream):
        stream.synchronize()
    assert caught.value.name == "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"
    with pytest.raises(DriverError), cpu.stream(0):
        graph.capture_begin()


def test_graphs_can_be_captured_again_and_reset() -> None:
    graph, ran = cpu.CUDAGraph(), []
    for value in (1, 2):
        with cpu.graph(graph):
            weft.runtime.launch_hostfunc(ran.append, value)
        graph.replay()
        cpu.synchronize()
    graph.reset()
    graph.reset()
    with pytest.raises(GraphError):
        graph.replay()
    assert ran == [1, 2]
    cpu.synchronize()


def test_launched_functions_run_in_inference_mode_and_outer_tensors_stay_usable() -> None:
    modes: list[bool] = []
    x = torch.zeros(2)
    stream = cpu.Stream()
    stream.launch(lambda: modes.append(torch.is_inference_mode_enabled()))
    stream.launch(lambda: x.copy_(torch.ones(2) * 3))
    stream.synchronize()
    assert modes == [True]
    assert not torch.is_inference_mode_enabled()
    weight = torch.ones(2, requires_grad=True)
    (weight * x).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3, 3]


def test_copies_are_checked() -> None:
    stream = cpu.Stream()
    x = torch.zeros(4, 4)
    for other in (torch.zeros(4), torch.zeros(4, 4, dtype=torch.int32), torch.zeros(4, 4).t()):
        with pytest.raises(InputError, match="contiguous"):
            stream.copy(x, other)


def test_a_trace_names_what_ran() -> None:
    stream = cpu.Stream()
    x = torch.zeros(1)
    with cpu.trace() as slices:
        stream.launch(x.add_, 1)
        stream.hostfunc(threading.get_ident)
        stream.synchronize()
    assert [(s.kind, s.name.rsplit(".", 1)[-1]) for s in slices] == [
        ("kernel", "add_"),
        ("host", "get_ident"),
    ]
    assert all(s.begin <= s.end for s in slices)


@pytest.mark.usefixtures("schedule")
def test_a_recording_waits_for_what_is_launched_inside(tmp_path: Path) -> None:
    runtime = weft.runtime.get("cpu")
    x = torch.zeros(1)
    with record_on(runtime) as slices:
        cpu.Stream().launch(x.add_, 1)
    with recording(runtime, tmp_path / "trace.json"):
        cpu.Stream().launch(x.add_, 1)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [s.kind for s in slices] == [e["cat"] for e in events if e["ph"] == "X"] == ["kernel"]


def test_schedules_and_devices_have_names() -> None:
    with pytest.raises(ValueError, match="inline"):
        cpu.set_schedule("fast")  # type: ignore[arg-type]
    assert weft.runtime.get("cpu").device.type == "cpu"
    with pytest.raises(InputError, match="auto"):
        weft.runtime.get("tpu")
    reason = weft.runtime.cuda.unavailable_reason()
    if reason is None:
        assert weft.runtime.get("auto").device.type == "cuda"
    else:
        assert weft.runtime.get("auto").device.type == "cpu"
        with pytest.raises(WeftError, match="the CUDA runtime can't be used"):
            weft.runtime.get("cuda")


@pytest.mark.parametrize(
    ("name", "seed"), [*(("random", seed) for seed in range(30)), *(("ahead", seed) for seed in range(4))]
)
def test_a_ring_is_safe_however_far_the_host_runs_ahead(name: cpu.ScheduleName, seed: int) -> None:
    cpu.set_schedule(name, seed)
    runtime = weft.runtime.CpuRuntime()
    stream = runtime.stream()
    state, total = torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    into, out = PinnedRing(runtime, state), PinnedRing(runtime, total)
    with runtime.capture(stream) as graph:
        stream.launch(lambda: total.add_(state))
    value, received = torch.zeros(3, dtype=torch.int64), []
    for i in range(4 * DEPTH):
        into.send(stream, value.fill_(i))
        value.fill_(-1000)
        graph.replay()
        received.append(out.start_receive(stream))
        if i >= DEPTH - 1:
            j = i - DEPTH + 1
            assert received[j].wait().tolist() == [j * (j + 1) // 2] * 3
    assert out.receive(stream).tolist() == [66] * 3
    cpu.synchronize()
    cpu.set_schedule("inline")


def test_a_side_stream_may_be_dropped_in_a_capture() -> None:
    """Its Python object goes; the capture, and the handle, live on until a wait outside."""
    x = torch.zeros(1)
    stream, graph = cpu.Stream(), cpu.CUDAGraph()
    with cpu.graph(graph, stream=stream):
        side = cpu.Stream()
        side.wait_stream(stream)
        side.launch(x.add_, 1)
        stream.wait_stream(side)
        del side
        gc.collect()
        stream.launch(x.mul_, 2)
    with cpu.stream(stream):
        graph.replay()
    cpu.synchronize()
    assert x.item() == 2


def test_a_ring_that_has_gone_round_waits(schedule: None) -> None:
    """Nobody waits for anything but the ring itself, before it writes to a buffer again."""
    runtime = weft.runtime.CpuRuntime()
    stream = runtime.stream()
    state, seen = torch.zeros(1, dtype=torch.int64), list[int]()
    ring = PinnedRing(runtime, state)
    for i in range(3 * DEPTH):
        ring.send(stream, torch.tensor([i]))
        stream.launch(lambda: seen.append(int(state[0])))
    stream.synchronize()
    assert seen == [*range(3 * DEPTH)]


def test_ahead_nothing_runs_before_somebody_waits_and_then_one_side_first() -> None:
    order = {}
    for seed in (0, 1, 2):
        cpu.set_schedule("ahead", seed)
        streams, seen = [cpu.Stream(), cpu.Stream()], list[int]()
        for i in range(8):
            streams[i % 2].launch(seen.append, i)
        assert seen == []
        streams[0].synchronize()
        assert seen[-1:] == [6] and (seed != 0 or seen == [0, 2, 4, 6])
        cpu.synchronize()
        order[seed] = seen
    assert order[0] == [0, 2, 4, 6, 1, 3, 5, 7]
    assert order[1] == [1, 3, 5, 7, 0, 2, 4, 6]
    assert sorted(order[2]) == [*range(8)]
    cpu.set_schedule("inline")
