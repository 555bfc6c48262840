"""Streams and events of both runtimes. They call a driver (CPU or CUDA) through the core's driver table."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch

from weft import _core
from weft.errors import InputError
from weft.runtime import interface
from weft.runtime.interface import NativeTask

NON_BLOCKING = 1
BLOCKING_SYNC, DISABLE_TIMING = 1, 2


@runtime_checkable
class HasCudaStream(Protocol):
    """A stream of any library: `__cuda_stream__` returns (0, raw handle)."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


def stream_handle(stream: object) -> int:
    """The raw handle of `stream`: an object with `__cuda_stream__`, or the handle itself as a number."""
    if isinstance(stream, int):
        return stream
    if isinstance(stream, HasCudaStream):
        return int(stream.__cuda_stream__()[1])
    raise InputError(
        f"a stream is an object with __cuda_stream__ or a raw handle, not {type(stream).__name__}"
    )


class TableEvent:
    """A point in a stream of one of the drivers."""

    def __init__(self, driver: int, *, enable_timing: bool = False, blocking: bool = False) -> None:
        flags = (0 if enable_timing else DISABLE_TIMING) | (BLOCKING_SYNC if blocking else 0)
        self._driver = driver
        self._handle = self.handle = _core.event_create(driver, flags)

    def query(self) -> bool:
        """Whether all work before the event is done; True before the first record."""
        return _core.event_query(self._driver, self._handle)

    def synchronize(self) -> None:
        """Wait for the event, without the GIL."""
        _core.event_synchronize(self._driver, self._handle)

    def elapsed_time(self, end_event: TableEvent) -> float:
        """Milliseconds from this event to `end_event`; both need `enable_timing` and must be done."""
        return _core.event_elapsed_time(self._driver, self._handle, end_event._handle)

    def __del__(self) -> None:
        dispose(_core.event_destroy, self._driver, getattr(self, "_handle", 0))


class TableStream:
    """A queue of work of one of the drivers, which runs in order. Subclasses implement `launch`."""

    def __init__(self, driver: int, handle: int) -> None:
        self._driver = driver
        self._handle = handle

    @property
    def handle(self) -> int:
        """The raw handle, 0 for the default stream."""
        return self._handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)

    def hostfunc(self, task: NativeTask | Callable[..., object], *args: Any) -> None:
        """Enqueue host work: a native task (no GIL) or a Python callable with its arguments."""
        if not isinstance(task, NativeTask):
            _core.launch_hostfunc(self._driver, self._handle, True, task, args, {})
            return
        if args:
            raise InputError(f"native task {task.name} takes no arguments; put them where its data points")
        _core.launch_native(
            self._driver, self._handle, task.function, task.data, task.owner, task.name, polled=task.polled
        )

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """Copy contiguous `src` to contiguous `dst` of the same shape and dtype. CUDA needs pinned host memory."""
        if (
            dst.shape != src.shape
            or dst.dtype != src.dtype
            or not (dst.is_contiguous() and src.is_contiguous())
        ):
            raise InputError(
                f"copy needs contiguous tensors of one shape and dtype, not {_describe(dst)} and "
                f"{_describe(src)}"
            )
        self.copy_bytes(dst.data_ptr(), src.data_ptr(), src.numel() * src.element_size())

    def copy_bytes(self, dst: int, src: int, num_bytes: int) -> None:
        """Copy bytes between two addresses. The caller checks them and keeps their memory alive."""
        _core.memcpy_async(self._driver, dst, src, num_bytes, self._handle)

    def record(self, event: interface.Event) -> None:
        """Record `event` after the work enqueued so far."""
        _core.event_record(self._driver, event.handle, self._handle)

    def wait(self, event: interface.Event) -> None:
        """Make later work wait for `event`."""
        _core.stream_wait_event(self._driver, self._handle, event.handle)

    def query(self) -> bool:
        """Whether all work is done."""
        return _core.stream_query(self._driver, self._handle)

    def synchronize(self) -> None:
        """Wait for all work of the stream, without the GIL, then raise the exception of a callback, if any."""
        _core.stream_synchronize(self._driver, self._handle)
        settle(self._driver)

    def is_capturing(self) -> bool:
        """Whether the stream is being captured into a graph."""
        return _core.stream_is_capturing(self._driver, self._handle)


# Objects that the driver can't destroy yet: they became unused inside a callback, or they are streams that are being
# captured.
_postponed: list[tuple[Callable[[int, int], None], int, int]] = []


def dispose(destroy: Callable[[int, int], None], driver: int, handle: int) -> None:
    """Destroy a driver object. Handle 0 means no object.

    Inside a callback, or if the object is a stream that is being captured, it is destroyed after the next wait.
    """
    if not handle or sys.is_finalizing():
        return
    is_stream = destroy is _core.stream_destroy
    if _core.in_task() or (is_stream and _core.stream_is_capturing(driver, handle)):
        _postponed.append((destroy, driver, handle))
    else:
        destroy(driver, handle)


def settle(driver: int) -> None:
    """After a wait: free postponed objects and finished payloads, then raise the exception of a callback, if any."""
    while _postponed:
        destroy, of, handle = _postponed.pop()
        destroy(of, handle)
    _core.drain()
    _core.check(driver)


def _describe(tensor: torch.Tensor) -> str:
    order = "" if tensor.is_contiguous() else "strided "
    return f"{order}{tuple(tensor.shape)} {tensor.dtype}"
