"""torch.cuda's streams and graphs over weft's CPU driver, so that the CUDA runtime's own code runs without a GPU.

Kernels run when they are launched, also in a capture: what graphs hold are host functions and copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from weft import _core
from weft.runtime import cuda, cuda_capture
from weft.runtime.cuda import CudaRuntime
from weft.runtime.current import CPU


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
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", fake.end_pool)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", fake.release_pool)
    monkeypatch.setattr(cuda, "CUDA", CPU)
    monkeypatch.setattr(cuda, "_idle_streams", {})
    monkeypatch.setattr(cuda_capture, "_abandoned", [])
    return fake, CudaRuntime(torch.device("cuda", 0))
