"""The CUDA runtime: torch's streams and graphs, with host functions, events and copies through the driver table.

Events go through the table because torch's event calls hold the GIL, which a callback may need. The table takes the raw
handles of torch's streams.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from weft import _core
from weft.errors import GraphError, WeftError
from weft.runtime import interface
from weft.runtime.cuda_capture import GraphPool, capturing
from weft.runtime.current import CUDA, context, set_torch_stream
from weft.runtime.streams import NON_BLOCKING, TableEvent, TableStream, settle, stream_handle

HIGH_PRIORITY = -1  # lower numbers run first; 0 is the default


@functools.cache
def unavailable_reason() -> str | None:
    """The reason why CUDA can't be used; None if it can."""
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device; check the driver with nvidia-smi"
    return _core.cuda_unavailable_reason()


def cuda_runtime(device: torch.device | int | None = None) -> CudaRuntime:
    """The runtime of `device` (default: torch's current device). Raises WeftError if CUDA can't be used."""
    reason = unavailable_reason()
    if reason is not None:
        raise WeftError(f"the CUDA runtime can't be used: {reason}")
    return CudaRuntime(torch.device("cuda", device) if isinstance(device, int) else device)


def _torch_stream(initialize: bool) -> int | None:
    if unavailable_reason() is not None:
        return None
    if not initialize and not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.current_stream().cuda_stream)


if torch.backends.cuda.is_built():
    set_torch_stream(_torch_stream)


class _Attached(threading.local):
    """The device whose context is current on this thread. Driver calls need a current context, which torch makes at its
    first use of the device."""

    index: int | None = None


_attached = _Attached()


def _attach(index: int) -> None:
    if _attached.index != index:
        torch.cuda.set_device(index)
        _attached.index = index


class CudaEvent(TableEvent):
    """A point in a CUDA stream."""

    def __init__(self, enable_timing: bool = False) -> None:
        super().__init__(CUDA, enable_timing=enable_timing)


_idle_streams: dict[tuple[int, int], list[int]] = {}  # by device and priority


def _take_stream(idle: list[int], priority: int) -> int:
    """A stream handle that no other object uses: one of `idle`, or a new one."""
    # Idle streams are reused, not destroyed: torch keeps memory and cuBLAS workspaces by stream handle.
    while True:
        try:
            handle = idle.pop()
        except IndexError:
            return _core.stream_create(CUDA, NON_BLOCKING, priority)
        if not _core.stream_is_capturing(CUDA, handle):  # unusable if its capture never ended
            return handle


class CudaStream(TableStream):
    """A stream for torch's work: one of weft's, with `priority`, or a given one (any object with `__cuda_stream__`).

    weft does not use torch's pool of 32 streams. torch hands them out in turn, so other code could get the same stream,
    even during a capture. Graphs captured on the stream share `graph_pool` for their allocations."""

    def __init__(self, device: torch.device, stream: object = None, priority: int = 0) -> None:
        self._index = torch.cuda.current_device() if device.index is None else device.index
        _attach(self._index)
        self._idle: list[int] | None = None  # the list to which a handle of weft's own returns
        if isinstance(stream, torch.cuda.Stream):
            self.torch_stream = stream
        elif stream is not None:
            self.torch_stream = torch.cuda.ExternalStream(stream_handle(stream), device=device)
        else:
            idle = _idle_streams.setdefault((self._index, priority), [])
            self.torch_stream = torch.cuda.ExternalStream(_take_stream(idle, priority), device=device)
            self._idle = idle
        self.graph_pool = GraphPool()
        super().__init__(CUDA, self.torch_stream.cuda_stream)

    def __del__(self) -> None:
        idle = getattr(self, "_idle", None)
        if idle is not None and not sys.is_finalizing():
            idle.append(self._handle)

    def launch(self, fn: Callable[..., object], *args: Any) -> None:
        """Run `fn(*args)` immediately, in inference mode; its kernels go to this stream."""
        _core.check(CUDA)
        _attach(self._index)
        with torch.cuda.stream(self.torch_stream), torch.inference_mode():
            fn(*args)

    def hostfunc(self, task: interface.NativeTask | Callable[..., object], *args: Any) -> None:
        """Enqueue host work: a native task (no GIL) or a Python callable with its arguments."""
        _attach(self._index)
        super().hostfunc(task, *args)


class CudaGraph:
    """`interface.Graph` on CUDA."""

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        self.graph: torch.cuda.CUDAGraph | None = None
        self.num_polled = 0

    def replay(self) -> None:
        """Launch the graph on the stream of its capture. An exception of an earlier callback is raised first."""
        if self.graph is None:
            raise GraphError("the graph was closed")
        _core.check(CUDA)
        if self.num_polled:
            _core.expect_polled(CUDA, self.num_polled)
        try:
            with torch.cuda.stream(self._stream.torch_stream):
                self.graph.replay()
        except BaseException:
            _core.expect_polled(CUDA, -self.num_polled)
            raise

    def replay_and_copy(self, dst: int, src: int, num_bytes: int, event: interface.Event) -> None:
        """Launch the graph, copy bytes after it, and record `event` after the copy."""
        self.replay()
        self._stream.copy_bytes(dst, src, num_bytes)
        self._stream.record(event)

    def close(self) -> None:
        """Free the graph. The payloads of its host functions are released when its last launch is done."""
        graph, self.graph = self.graph, None
        # Without `reset`, torch would destroy the executable graph with the GIL held when Python frees the object.
        # `reset` releases the GIL.
        if graph is not None:
            graph.reset()
            self._stream.graph_pool.release()


class CudaRuntime:
    """`interface.Runtime` on one CUDA device; make it with `cuda_runtime`."""

    def __init__(self, device: torch.device | None = None) -> None:
        torch.cuda.init()
        index = torch.cuda.current_device() if device is None or device.index is None else device.index
        self._index = index
        self.device = torch.device("cuda", index)
        self._polls = False
        _core.use_device(index)

    def stream(self, *, high_priority: bool = False) -> CudaStream:
        """Make a stream. Waiting kernels of a stream with `high_priority` run before those of other streams."""
        return CudaStream(self.device, priority=HIGH_PRIORITY if high_priority else 0)

    def event(self) -> CudaEvent:
        """Make an event."""
        _attach(self._index)
        return CudaEvent()

    @contextmanager
    def capture(self, stream: interface.Stream) -> Iterator[CudaGraph]:
        """Capture work of `stream`, and of streams that join it, into the yielded graph. Raises `GraphError` from the
        first error of torch or of the driver."""
        assert isinstance(stream, CudaStream)
        if self._polls:
            self.prepare_polling()
        captured, graph = CudaGraph(stream), torch.cuda.CUDAGraph()
        _core.check(CUDA)
        with (
            capturing(graph, stream.torch_stream, stream.graph_pool),
            context(CUDA, stream.handle),
        ):
            yield captured
            _, number, _ = _core.stream_capture_info(CUDA, stream.handle)
        captured.graph, captured.num_polled = graph, _core.polled_tasks(CUDA, number)

    @contextmanager
    def use(self, stream: interface.Stream) -> Iterator[None]:
        """Context in which torch's work of this thread goes to `stream`, in inference mode."""
        assert isinstance(stream, CudaStream)
        with torch.cuda.stream(stream.torch_stream), torch.inference_mode():
            yield

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate zeroed page-locked host memory."""
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def prepare_polling(self) -> str | None:
        """Reserve room for polled native tasks, now and before every later capture. Returns None, or the reason why the
        device or its driver can't poll."""
        _attach(self._index)
        missing = _core.prepare_polling(CUDA)
        self._polls = missing is None
        return missing

    def publish(self) -> None:
        """Wait for this thread's current torch stream, without the GIL."""
        _attach(self._index)
        _core.stream_synchronize(CUDA, torch.cuda.current_stream(self.device).cuda_stream)

    def memory(self) -> tuple[int, int]:
        """Bytes that torch's allocators hold: device memory, and page-locked host memory."""
        pinned = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
        return torch.cuda.memory_reserved(self.device), pinned

    def free_memory(self) -> int:
        """Bytes that are free on the device or unused in torch's allocator. Waits for all work of the device."""
        self.synchronize()
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + unused

    def synchronize(self) -> None:
        """Wait for all work, without the GIL, then raise the exception of a callback, if any."""
        _attach(self._index)
        _core.ctx_synchronize(CUDA)
        settle(CUDA)

    def check(self) -> None:
        """Raise the exception of a callback, if any."""
        _core.check(CUDA)


def capture_kept(stream: CudaStream, issue: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Capture the work that `issue` gives to `stream` into a graph that keeps its nodes, so that they can be listed."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with capturing(graph, stream.torch_stream, GraphPool()), context(CUDA, stream.handle):
        issue()
    return graph
