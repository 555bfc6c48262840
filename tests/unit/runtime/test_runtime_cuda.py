"""The CUDA runtime's own code over a fake torch.cuda: its streams, captures that fail, and the memory of graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from support.fake_torch_cuda import FakeTorchCuda, install
from weft import _core
from weft.errors import DriverError, GraphError, InputError
from weft.runtime import CpuRuntime, cuda_capture
from weft.runtime.cuda import CudaRuntime, CudaStream, capture_kept
from weft.runtime.current import CPU


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTorchCuda:
    made, runtime = install(monkeypatch)
    monkeypatch.setattr(made, "runtime", runtime, raising=False)
    return made


@pytest.fixture
def runtime(fake: FakeTorchCuda) -> CudaRuntime:
    return fake.runtime  # type: ignore[attr-defined, no-any-return]


def test_a_graph_runs_at_every_replay(fake: FakeTorchCuda, runtime: CudaRuntime) -> None:
    stream, seen = runtime.stream(), []
    with runtime.capture(stream) as graph:
        stream.hostfunc(seen.append, 1)
    for _ in range(3):
        graph.replay()
    stream.synchronize()
    assert seen == [1, 1, 1] and fake.current == [0]
    graph.close()
    with pytest.raises(GraphError, match="was closed"):
        graph.replay()


def torch_fails() -> None:
    raise torch.AcceleratorError("operation not permitted when stream is capturing")


def driver_fails() -> None:
    _core.event_record(CPU, 8, 8)


def own_fails() -> None:
    raise InputError("no")


def interrupted() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("broken", "raised", "cause"),
    [
        (torch_fails, GraphError, torch.AcceleratorError),
        (driver_fails, GraphError, DriverError),
        (own_fails, InputError, None),
        (interrupted, KeyboardInterrupt, None),
    ],
)
@pytest.mark.parametrize("fail_end", [False, True])
def test_a_capture_that_fails_leaves_nothing_and_raises_its_first_error(
    broken: Callable[[], None],
    raised: type[BaseException],
    cause: type[BaseException] | None,
    fail_end: bool,
    fake: FakeTorchCuda,
    runtime: CudaRuntime,
) -> None:
    stream = runtime.stream()
    fake.fail_end = fail_end
    with pytest.raises(raised) as error, runtime.capture(stream) as graph:
        broken()
    if cause is None:
        assert error.value.__cause__ is None
    else:
        assert isinstance(error.value.__cause__, cause) and str(error.value.__cause__) in str(error.value)
    assert fake.current == [0] and not stream.is_capturing()
    assert fake.recording == [] and set(fake.users.values()) == {0}
    assert len(cuda_capture._abandoned) == fail_end  # torch's host allocator asks them
    with pytest.raises(GraphError):
        graph.replay()
    fake.fail_end = False
    seen: list[int] = []
    with runtime.capture(stream) as graph:
        stream.hostfunc(seen.append, 1)
    graph.replay()
    stream.synchronize()
    assert seen == [1] and set(fake.users.values()) == {0, 1}


def test_a_capture_that_can_not_be_ended_is_a_graph_error(fake: FakeTorchCuda, runtime: CudaRuntime) -> None:
    stream, other = runtime.stream(), runtime.stream()

    def fork() -> None:
        event = runtime.event()
        stream.record(event)
        other.wait(event)  # and never joins
        other.hostfunc(print)

    with pytest.raises(GraphError, match="the capture failed"), runtime.capture(stream):
        fork()
    assert fake.current == [0] and fake.recording == [] and set(fake.users.values()) == {0}
    with pytest.raises(GraphError, match="the capture failed"):
        capture_kept(stream, torch_fails)
    assert fake.current == [0] and fake.recording == []


def test_the_graphs_of_a_stream_share_their_memory(fake: FakeTorchCuda, runtime: CudaRuntime) -> None:
    stream, other = runtime.stream(), runtime.stream()
    graphs = []
    for _ in range(3):
        with runtime.capture(stream) as graph:
            stream.hostfunc(print)
        graphs.append(graph)
    assert fake.users == {fake.pools[0]: 3}
    assert (fake.num_emptied, fake.num_synchronized) == (1, 0)  # not for every capture
    with runtime.capture(other) as apart:  # it may run beside them
        other.hostfunc(print)
    assert list(fake.users.values()) == [3, 1]
    for graph in graphs:
        graph.close()
        graph.close()
    assert list(fake.users.values()) == [0, 1]
    with runtime.capture(stream) as graph:  # torch let go of the first pool
        stream.hostfunc(print)
    assert list(fake.users.values()) == [0, 1, 1]
    graph.close()
    apart.close()


def test_a_stream_is_nobody_elses_while_it_lives(runtime: CudaRuntime) -> None:
    streams = [runtime.stream() for _ in range(70)]  # torch has 32 to give in turns
    handles = [stream.handle for stream in streams]
    assert len(set(handles)) == 70
    del streams
    gc.collect()
    again = [runtime.stream() for _ in range(35)]  # torch keeps memory by handle, so they are used again
    assert {stream.handle for stream in again} <= set(handles)
    given = CudaStream(runtime.device, handles[-1])
    assert given.handle == handles[-1]
    del given  # the giver's
    gc.collect()
    high = runtime.stream(high_priority=True)
    assert high.handle not in handles
    more = [runtime.stream() for _ in range(40)]
    assert len({stream.handle for stream in [*again, *more, high]}) == 76


def test_a_stream_whose_capture_never_ended_is_not_used_again(runtime: CudaRuntime) -> None:
    stream = runtime.stream()
    handle = stream.handle
    _core.stream_begin_capture(CPU, handle, 1)
    del stream
    gc.collect()
    assert runtime.stream().handle != handle
    _core.graph_destroy(CPU, _core.stream_end_capture(CPU, handle))


def test_what_torch_filled_is_waited_for_where_it_was_filled(
    fake: FakeTorchCuda, runtime: CudaRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []
    monkeypatch.setattr(_core, "stream_synchronize", lambda driver, handle: waited.append(handle))
    runtime.publish()
    with runtime.use(stream := runtime.stream()):
        runtime.publish()
    assert waited == [0, stream.handle]
    CpuRuntime().publish()


def test_torch_has_the_calls_that_end_a_broken_capture() -> None:
    assert callable(torch._C._cuda_endAllocateToPool) and callable(torch._C._cuda_releasePool)
