"""The CPU runtime: streams, events and graphs with the names of `torch.cuda`.

`Stream.launch(fn, *args)` corresponds to a kernel launch. Host functions go to the current stream, as with
`torch.cuda`. `set_schedule` selects how nodes run:

- "inline": a thread that waits or queries runs them; a native thread may run costly host functions.
- "threads": each stream, and each branch of a graph, has a thread, and so have the host functions.
- "random": one node runs at a time, in a legal order drawn from a seed.
- "ahead": nothing runs until the host waits; then one stream runs as far as it can. Seed 0 picks the oldest stream,
  seed 1 the newest. Other seeds switch between both at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from weft import _core
from weft.errors import DriverError, GraphError, InputError
from weft.runtime import interface
from weft.runtime.capture_guard import CaptureGuard
from weft.runtime.current import CPU, context, current_cpu
from weft.runtime.graph_memory import Arena, GraphMemory
from weft.runtime.host_memory import free_bytes
from weft.runtime.recorder import record
from weft.runtime.streams import NON_BLOCKING, TableEvent, TableStream, dispose, settle, stream_handle
from weft.runtime.torch_internals import bare_inference_mode

ScheduleName = Literal["inline", "threads", "random", "ahead"]
CaptureMode = Literal["global", "thread_local", "relaxed"]
_CAPTURE_MODES: dict[str, int] = {"global": 0, "thread_local": 1, "relaxed": 2}


def launch_device(handle: int, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
    """Enqueue `fn(*args)` on the CPU driver's stream `handle`, or capture it if the stream is being captured."""
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    memory = _capturing(handle)
    if memory is None:
        _core.launch_device(handle, _run_device, (fn, args), {}, name)
    else:
        record(handle, memory, fn, args, name)


memories: dict[int, GraphMemory] = {}
"""The graph memory of each capture in progress, by the capture's number."""


def _capturing(handle: int) -> GraphMemory | None:
    """The memory of the graph that the stream is captured into; None outside a capture."""
    if not memories:
        return None
    status, number, _ = _core.stream_capture_info(CPU, handle)
    return memories.get(number) if status else None


def _run_device(fn: Callable[..., object], args: tuple[Any, ...]) -> None:
    # Entering inference mode costs microseconds. With the inline schedule, nodes run on the waiting thread, so a loop
    # that waits in inference mode pays for the entry only once.
    if torch.is_inference_mode_enabled():
        fn(*args)
    else:
        with bare_inference_mode(True):
            fn(*args)


class Event(TableEvent):
    """A point in a stream, as `torch.cuda.Event`."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False) -> None:
        super().__init__(CPU, enable_timing=enable_timing, blocking=blocking)

    def record(self, stream: object = None) -> None:
        """Record the event after the work enqueued so far on `stream` (default: the current stream)."""
        _core.event_record(CPU, self.handle, _handle_or_current(stream))

    def wait(self, stream: object = None) -> None:
        """Make later work of `stream` (default: the current stream) wait for the event."""
        _core.stream_wait_event(CPU, _handle_or_current(stream), self.handle)


class Stream(TableStream):
    """A queue of nodes, as `torch.cuda.Stream`."""

    def __init__(self) -> None:
        super().__init__(CPU, _core.stream_create(CPU, NON_BLOCKING))

    def launch(self, fn: Callable[..., object], *args: Any) -> None:
        """Enqueue device work: `fn(*args)` becomes a node, which runs in inference mode. In a capture `fn` runs once,
        immediately, and its operations become nodes (`runtime/recorder.py`)."""
        launch_device(self._handle, fn, args)

    def wait_event(self, event: interface.Event) -> None:
        """Make later work wait for `event`."""
        self.wait(event)

    def wait_stream(self, stream: TableStream) -> None:
        """Make later work wait for all work enqueued so far on `stream`."""
        self.wait(_record_on(stream))

    def record_event(self, event: Event | None = None) -> Event:
        """Record `event`, or a new one, and return it."""
        event = event or Event()
        self.record(event)
        return event

    def __del__(self) -> None:
        dispose(_core.stream_destroy, CPU, getattr(self, "_handle", 0))


class _DefaultStream(Stream):
    def __init__(self) -> None:
        TableStream.__init__(self, CPU, 0)

    def __del__(self) -> None:
        pass


class ExternalStream(_DefaultStream):
    """A stream owned by other code, given as a raw handle or an object with `__cuda_stream__`."""

    def __init__(self, stream: object) -> None:
        TableStream.__init__(self, CPU, stream_handle(stream))


def _record_on(stream: TableStream) -> Event:
    event = Event()
    stream.record(event)
    return event


def _handle_or_current(stream: object) -> int:
    return current_cpu() if stream is None else stream_handle(stream)


class CUDAGraph:
    """A captured graph, as `torch.cuda.CUDAGraph`."""

    def __init__(self) -> None:
        self._exec = 0
        self._captured_on = 0
        self._capture = 0
        self._num_polled = 0
        self._memory = GraphMemory()

    @property
    def handle(self) -> int:
        """The raw handle of the executable graph; 0 before a capture and after a reset."""
        return self._exec

    def capture_begin(self, pool: object = None, capture_error_mode: CaptureMode = "global") -> None:
        """Begin to capture the current stream. `pool` is the `Arena` for allocations during the capture (default: a new
        one). Graphs that never run at the same time can share an arena."""
        if capture_error_mode not in _CAPTURE_MODES:
            raise InputError(
                f"capture_error_mode is one of {sorted(_CAPTURE_MODES)}, not {capture_error_mode!r}"
            )
        self.reset()
        self._captured_on = current_cpu()
        _core.stream_begin_capture(CPU, self._captured_on, _CAPTURE_MODES[capture_error_mode])
        _, self._capture, _ = _core.stream_capture_info(CPU, self._captured_on)
        self._memory = GraphMemory(pool if isinstance(pool, Arena) else None)
        memories[self._capture] = self._memory

    def capture_end(self) -> None:
        """End the capture. Raises GraphError if it broke a rule of captures."""
        graph = self.end_capture()
        try:
            self._exec = _core.graph_instantiate(CPU, graph)
            self._num_polled = _core.polled_tasks(CPU, self._capture)
        finally:
            _core.graph_destroy(CPU, graph)

    def end_capture(self) -> int:
        """End the capture without instantiating the graph. Returns the raw graph, which the caller must destroy."""
        memories.pop(self._capture, None)
        try:
            return _core.stream_end_capture(CPU, self._captured_on)
        except DriverError as error:
            raise GraphError(f"the capture failed: {error}") from error

    def replay(self) -> None:
        """Launch the graph on the current stream. An exception of an earlier callback is raised first."""
        self.launch_on(current_cpu())

    def launch_on(self, handle: int) -> None:
        """Launch the graph on the stream `handle`."""
        self._check()
        _core.check(CPU)
        _core.graph_launch(CPU, self._exec, handle, self._num_polled)

    def launch_and_copy(self, handle: int, dst: int, src: int, num_bytes: int, event: int) -> None:
        """Launch the graph on the stream `handle`, then copy bytes, and record the event with this handle."""
        if not self._exec or self._memory.checks:
            self._check()
        _core.check(CPU)
        _core.graph_launch_and_copy(CPU, self._exec, handle, self._num_polled, dst, src, num_bytes, event)

    def _check(self) -> None:
        """Raise `GraphError` if there is no graph, or if memory that it uses was freed."""
        if not self._exec:
            raise GraphError("the graph has nothing to replay: capture it first, or it was reset")
        self._memory.check()

    def reset(self) -> None:
        """Free the captured graph. The payloads of its host functions are released when its last launch is done."""
        exec_, self._exec = self._exec, 0
        self._memory = GraphMemory()
        dispose(_core.graph_exec_destroy, CPU, exec_)

    def __del__(self) -> None:
        if getattr(self, "_exec", 0):
            self.reset()


class stream:
    """Context in which `stream` is the current stream: any object with `__cuda_stream__`, or None for no change."""

    def __init__(self, stream: object) -> None:
        self._handle = None if stream is None else stream_handle(stream)
        self._stack = ExitStack()

    def __enter__(self) -> None:
        if self._handle is not None:
            self._stack.enter_context(context(CPU, self._handle))

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


class graph:
    """Context that captures work of `stream`, and of streams that join it, into `cuda_graph`.

    A torch op outside `Stream.launch` raises GraphError, because it would run only once, during the capture, and not at
    replays.
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: object = None,
        stream: object = None,
        capture_error_mode: CaptureMode = "global",
    ) -> None:
        if stream is None:
            if graph.default_capture_stream is None:
                graph.default_capture_stream = Stream()
            stream = graph.default_capture_stream
        self._graph, self._stream, self._mode, self._pool = cuda_graph, stream, capture_error_mode, pool

    def __enter__(self) -> None:
        _core.check(CPU)
        with ExitStack() as stack:
            stack.enter_context(context(CPU, stream_handle(self._stream)))
            self._graph.capture_begin(self._pool, self._mode)
            stack.enter_context(CaptureGuard())
            self._contexts = stack.pop_all()

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        self._contexts.close()
        try:
            self._graph.capture_end()
        except GraphError:
            if exc_type is None:
                raise
        if exc_type is not None:
            self._graph.reset()  # the graph is incomplete


def current_stream() -> Stream:
    """The stream of the innermost CPU `stream` or `graph` context on this thread, else the default stream."""
    return ExternalStream(current_cpu())


def default_stream() -> Stream:
    """The stream that is current outside all contexts. It can't be captured."""
    return _DefaultStream()


def is_current_stream_capturing() -> bool:
    """Whether the current stream is being captured."""
    return _core.stream_is_capturing(CPU, current_cpu())


def synchronize() -> None:
    """Wait for all streams, without the GIL, then raise the exception of a callback, if any."""
    _core.ctx_synchronize(CPU)
    settle(CPU)


def set_schedule(name: ScheduleName, seed: int = 0) -> None:
    """Select how nodes run from now on (see the module's docstring). All streams must be idle. `seed` is for "random"
    and "ahead"."""
    _core.cpu_set_schedule(name, seed)


@dataclass(frozen=True)
class TraceSlice:
    """A node that ran. `thread` and `stream` are numbers; `begin` and `end` are seconds of the same clock."""

    name: str
    kind: str
    stream: int
    thread: int
    begin: float
    end: float


@contextmanager
def trace() -> Iterator[list[TraceSlice]]:
    """Collect the nodes that run inside the context. The yielded list is filled when the context ends."""
    slices: list[TraceSlice] = []
    _core.cpu_trace_start()
    try:
        yield slices
    finally:
        slices += [TraceSlice(*s) for s in _core.cpu_trace_stop()]


class CpuGraph:
    """`interface.Graph` on the CPU."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._handle = stream, stream.handle
        self.graph = CUDAGraph()

    def replay(self) -> None:
        """Launch the graph on the stream of its capture. An exception of an earlier callback is raised first."""
        self.graph.launch_on(self._stream.handle)

    def replay_and_copy(self, dst: int, src: int, num_bytes: int, event: interface.Event) -> None:
        """Launch the graph, copy bytes after it, and record `event` after the copy."""
        self.graph.launch_and_copy(self._handle, dst, src, num_bytes, event.handle)

    def close(self) -> None:
        """Free the graph. The payloads of its host functions are released when its last launch is done."""
        self.graph.reset()


class CpuRuntime:
    """`interface.Runtime` on the CPU. All CPU runtimes of a process share one device."""

    device = torch.device("cpu")
    free_memory = staticmethod(free_bytes)

    def __init__(self) -> None:
        self._arenas: dict[int, Arena] = {}
        self._polls = False

    def stream(self, *, high_priority: bool = False) -> Stream:
        """Make a stream. Priorities have no effect on the CPU."""
        return Stream()

    def event(self) -> Event:
        """Make an event."""
        return Event()

    @contextmanager
    def capture(self, stream: interface.Stream) -> Iterator[CpuGraph]:
        """Capture work of `stream`, and of streams that join it, into the yielded graph."""
        assert isinstance(stream, Stream)
        if self._polls:
            self.prepare_polling()
        captured = CpuGraph(stream)
        pool = self._arenas.setdefault(stream.handle, Arena())  # graphs of one stream run one after another
        with graph(captured.graph, pool, stream, "thread_local"):
            yield captured

    @contextmanager
    def use(self, stream: interface.Stream) -> Iterator[None]:
        """Context in which `stream` is current and torch runs synchronously, in inference mode."""
        with context(CPU, stream.handle), torch.inference_mode():
            yield

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate zeroed host memory. On the CPU, copies can use any memory."""
        return torch.zeros(shape, dtype=dtype)

    def prepare_polling(self) -> str | None:
        """Reserve room for polled native tasks, now and before every later capture."""
        self._polls = True
        return _core.prepare_polling(CPU)

    def publish(self) -> None:
        """Do nothing: torch runs synchronously on the CPU."""

    def memory(self) -> tuple[int, int]:
        """(0, 0): the CPU has no device memory and no page-locked memory."""
        return 0, 0

    def synchronize(self) -> None:
        """Wait for all work, then raise the exception of a callback, if any."""
        synchronize()

    def check(self) -> None:
        """Raise the exception of a callback, if any."""
        _core.check(CPU)
