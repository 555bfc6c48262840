"""The interface that the CUDA and CPU runtimes implement.

A `Stream` runs device work (`launch`), host work (`hostfunc`) and copies in order. An `Event` orders streams. A `Graph`
is captured work that can be replayed. A `Runtime` makes all three.

The Python of a function given to `launch` runs at every launch, or only once if the launch is captured. Its effect must
be the same in both cases. So the function returns nothing, has no side effects on the host and reads no device value on
the host. Tensors that other nodes or streams use must be allocated before the launch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class NativeTask:
    """A host task that runs without Python: `function(data)`. Both are addresses; `owner` keeps `data` alive.

    With `polled`, a captured task does not become a host node; a polling thread runs it (`Runtime.prepare_polling`).
    """

    name: str
    function: int
    data: int
    owner: object = field(repr=False)
    polled: bool = False


class Event(Protocol):
    """A point in a stream that the host or other streams can wait for."""

    @property
    def handle(self) -> int: ...
    def query(self) -> bool:
        """Whether all work before the event is done."""

    def synchronize(self) -> None:
        """Wait for the event, without the GIL."""


class Stream(Protocol):
    """A queue of work that runs in order."""

    @property
    def handle(self) -> int: ...
    def launch(self, fn: Callable[..., object], *args: Any) -> None:
        """Enqueue device work. On CUDA `fn(*args)` runs immediately and enqueues kernels. On the CPU it becomes a node;
        in a capture it runs immediately and its operations become nodes."""

    def hostfunc(self, task: NativeTask | Callable[..., object], *args: Any) -> None:
        """Enqueue host work: a native task (no GIL) or a Python callable with its arguments."""

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """Copy contiguous `src` to contiguous `dst` of the same shape and dtype. CUDA needs pinned host memory."""

    def record(self, event: Event) -> None: ...
    def wait(self, event: Event) -> None: ...
    def synchronize(self) -> None:
        """Wait for all work of the stream, then raise the exception of a callback, if any."""


class Graph(Protocol):
    """Captured work that can be replayed."""

    def replay(self) -> None:
        """Launch the graph on the stream of its capture. An exception of an earlier callback is raised first."""

    def replay_and_copy(self, dst: int, src: int, num_bytes: int, event: Event) -> None:
        """Launch the graph as `replay` does, then copy bytes between two addresses, and record `event` after the
        copy."""

    def close(self) -> None:
        """Free the graph. The payloads of its host functions are released when its last launch is done."""


class Runtime(Protocol):
    """Makes streams, events, graphs and pinned memory for one device."""

    @property
    def device(self) -> torch.device: ...
    def stream(self, *, high_priority: bool = False) -> Stream:
        """Make a stream. Waiting work of a stream with `high_priority` runs before that of other streams."""

    def event(self) -> Event: ...
    def capture(self, stream: Stream) -> AbstractContextManager[Graph]:
        """Capture work of `stream`, and of streams that join it by events, into the yielded graph."""

    def use(self, stream: Stream) -> AbstractContextManager[None]:
        """Context in which torch's work of this thread goes to `stream`, in inference mode. On the CPU torch runs
        synchronously, so wait for the stream's work first."""

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocate zeroed host memory that copies can use."""

    def prepare_polling(self) -> str | None:
        """Reserve room for polled native tasks. Call it before their capture. Returns None, or the reason why the
        device can't poll; the tasks then become host nodes."""

    def publish(self) -> None:
        """Make device tensors that were filled outside `launch` and `use` visible to all streams. torch fills such
        tensors on its current stream, which is not ordered with weft's streams. Don't call it during a capture."""

    def memory(self) -> tuple[int, int]:
        """Bytes that torch holds in this process: device memory, and page-locked host memory."""

    def free_memory(self) -> int:
        """Bytes of device memory available to new tensors. Waits for all work of the device."""

    def synchronize(self) -> None:
        """Wait for all work, then raise the exception of a callback, if any."""

    def check(self) -> None:
        """Raise the exception of a callback, if any."""
