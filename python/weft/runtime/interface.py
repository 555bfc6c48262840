"""The runtime contract: four nouns that CUDA and the CPU both implement.

A `Stream` takes device work (`launch`), host work (`hostfunc`) and copies, in order. An `Event` orders
streams. A `Graph` is what was captured. A `Runtime` makes them.

The one rule: a function given to `launch` behaves alike whether its Python runs each time, or once, at capture. So it
returns nothing, has no host side effects, reads no device value on the host, and what crosses nodes or streams is
allocated before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class NativeTask:
    """A host task that runs without Python: `function(data)`, both addresses; `owner` keeps `data` alive.

    With `polled` a thread that polls runs it where it is captured, rather than a host node (`Runtime.prepare_polling`).
    """

    name: str
    function: int
    data: int
    owner: object = field(repr=False)
    polled: bool = False


class Event(Protocol):
    """A point in a stream."""

    @property
    def handle(self) -> int: ...
    def query(self) -> bool:
        """Whether everything recorded before it is done."""

    def synchronize(self) -> None:
        """Wait for it, without the GIL."""


class Stream(Protocol):
    """Work in order."""

    @property
    def handle(self) -> int: ...
    def launch(self, fn: Callable[..., object], *args: Any) -> None:
        """Device work: on CUDA `fn(*args)` runs now and enqueues kernels; on the CPU it becomes a node, and in a
        capture it runs now and its operations become nodes."""

    def hostfunc(self, task: NativeTask | Callable[..., object], *args: Any) -> None:
        """Host work: a native task (no GIL) or a Python callable."""

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """Copy contiguous `src` to contiguous `dst` (same shape and dtype); CUDA needs pinned host memory."""

    def record(self, event: Event) -> None: ...
    def wait(self, event: Event) -> None: ...
    def synchronize(self) -> None:
        """Wait for all work of the stream, then raise what a callback raised."""


class Graph(Protocol):
    """A captured piece of work."""

    def replay(self) -> None:
        """Launch it on the stream it was captured on; raises first what an earlier callback raised."""

    def close(self) -> None:
        """Let go of it; payloads are released when the last launch is done."""


class Runtime(Protocol):
    """Where streams come from."""

    @property
    def device(self) -> torch.device: ...
    def stream(self, *, high_priority: bool = False) -> Stream:
        """A new stream. Work of one with `high_priority` goes before that of others where both wait."""

    def event(self) -> Event: ...
    def capture(self, stream: Stream) -> AbstractContextManager[Graph]:
        """Capture what is issued to `stream`, and to streams that join it by events, into the graph."""

    def use(self, stream: Stream) -> AbstractContextManager[None]:
        """Context in which torch's work of this thread goes to `stream`, in inference mode. On the CPU torch works at
        once: wait for what the stream has."""

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Zeroed host memory that copies can use."""

    def prepare_polling(self) -> str | None:
        """Make room for native tasks that are polled, before they are captured; None, or why the device has none: then
        they are host nodes."""

    def publish(self) -> None:
        """After device tensors were made or filled outside `launch` and `use`: let every stream see them. torch fills
        them on its own current stream, with which the others are not ordered. Not during a capture."""

    def memory(self) -> tuple[int, int]:
        """Bytes that torch holds in this process: of the device, and of page-locked host memory."""

    def free_memory(self) -> int:
        """Bytes of the device that a new tensor could have. Waits for what the device has to do."""

    def synchronize(self) -> None:
        """Wait for everything, then raise what a callback raised."""

    def check(self) -> None:
        """Raise what a callback raised, if any did."""
