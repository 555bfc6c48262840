"""The CUDA runtime's own code over a fake torch.cuda: its streams, captures that fail, and the memory of graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from weft import _core
from weft.errors import DriverError, GraphError, InputError
from weft.runtime import CpuRuntime, cuda, cuda_capture
from weft.runtime.cuda import CudaRuntime, CudaStream, capture_kept
from weft.runtime.current import CPU

# -- torch.cuda's streams and graphs over weft's CPU driver, so that the CUDA runtime's own code runs without a GPU


class FakeStream:
    """A stream as torch knows it."""

    def __init__(self, handle: int, device: object = None) -> None:
        self.cuda_stream, self.device_index = handle, 0


class FakeTorchCuda:
    """What torch's allocator and streams were told. `fail_end` makes `capture_end` fail with a capture open."""

    def __init__(self) -> None:
        self.current: list[int] = [0]
        self.pools: list[tuple[int, int]] = []
        self.users: dict[tuple[int, int], int] = {}
        self.recording: list[tuple[int, int]] = []
        self.num_synchronized = self.num_emptied = 0
        self.fail_end = False

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.current.append(stream.cuda_stream)
        try:
            yield
        finally:
            self.current.pop()

    def pool_handle(self) -> tuple[int, int]:
        self.pools.append((0, len(self.pools) + 1))
        return self.pools[-1]

    def begin_pool(self, pool: tuple[int, int]) -> None:
        # As torch's allocator asserts: a pool whose last graph is gone can't be used again.
        assert self.users.get(pool) != 0, "this pool was let go of"
        self.users[pool] = self.users.get(pool, 0) + 1
        self.recording.append(pool)

    def end_pool(self, device: int, pool: tuple[int, int]) -> None:
        if pool not in self.recording:
            raise RuntimeError("not currently recording to this pool")
        self.recording.remove(pool)

    def release_pool(self, device: int, pool: tuple[int, int]) -> None:
        self.users[pool] -= 1

    def empty_cache(self) -> None:
        self.num_emptied += 1


def install(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeTorchCuda, CudaRuntime]:
    """Put the fake in torch.cuda's place; with a runtime over it."""
    fake = FakeTorchCuda()

    class Graph:
        def __init__(self, keep_graph: bool = False) -> None:
            self.pool: tuple[int, int] | None = None
            self.exec = self.handle = 0
            self.was_captured = False

        def capture_begin(self, pool: tuple[int, int], capture_error_mode: str) -> None:
            assert capture_error_mode == "thread_local"
            fake.begin_pool(pool)
            self.pool = pool
            self.handle = fake.current[-1]
            _core.stream_begin_capture(CPU, self.handle, 1)

        def capture_end(self) -> None:
            assert fake.current[-1] == self.handle
            graph = _core.stream_end_capture(CPU, self.handle)  # where it fails, the pool is left as it is
            if fake.fail_end:
                _core.graph_destroy(CPU, graph)
                raise torch.AcceleratorError("operation failed due to a previous error during capture")
            assert self.pool is not None
            fake.end_pool(0, self.pool)
            self.exec = _core.graph_instantiate(CPU, graph)
            _core.graph_destroy(CPU, graph)
            self.was_captured = True

        def replay(self) -> None:
            _core.graph_launch(CPU, self.exec, fake.current[-1])

        def reset(self) -> None:
            if self.was_captured:
                assert self.pool is not None
                fake.release_pool(0, self.pool)
                _core.graph_exec_destroy(CPU, self.exec)
            self.was_captured = False

    def synchronize() -> None:
        fake.num_synchronized += 1

    replacements: dict[str, Any] = {
        "init": lambda: None,
        "current_device": lambda: 0,
        "set_device": lambda index: None,
        "ExternalStream": FakeStream,
        "CUDAGraph": Graph,
        "stream": fake.stream,
        "current_stream": lambda device=None: FakeStream(fake.current[-1]),
        "graph_pool_handle": fake.pool_handle,
        "empty_cache": fake.empty_cache,
        "synchronize": synchronize,
    }
    for name, replacement in replacements.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    monkeypatch.setattr(cuda_capture, "end_allocate_to_pool", fake.end_pool)
    monkeypatch.setattr(cuda_capture, "release_pool", fake.release_pool)
    monkeypatch.setattr(cuda, "CUDA", CPU)
    monkeypatch.setattr(cuda, "_idle_streams", {})
    monkeypatch.setattr(cuda_capture, "_abandoned", [])
    return fake, CudaRuntime(torch.device("cuda", 0))


# -- tests


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
