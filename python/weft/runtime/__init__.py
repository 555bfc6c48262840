"""Streams, events, graphs and host functions on CUDA and on the CPU."""

from __future__ import annotations

from typing import Literal

from weft.errors import InputError
from weft.runtime.cpu import CpuRuntime
from weft.runtime.cuda import cuda_runtime, unavailable_reason
from weft.runtime.current import Current, current
from weft.runtime.hostfunc import check as check  # `import x as x`: public in `weft`
from weft.runtime.hostfunc import free_hostfunc_user_data as free_hostfunc_user_data
from weft.runtime.hostfunc import hostfunc as hostfunc
from weft.runtime.hostfunc import hostfunc_handles as hostfunc_handles
from weft.runtime.hostfunc import launch_hostfunc as launch_hostfunc
from weft.runtime.hostfunc import set_watchdog
from weft.runtime.interface import Event, Graph, NativeTask, Runtime, Stream

DeviceName = Literal["cpu", "cuda", "auto"]


def get(device: DeviceName | str = "auto") -> Runtime:
    """The runtime of a device: "cpu", "cuda", "cuda:<number>" or "auto", which is CUDA if it can be used, else the CPU.

    Raises WeftError if `device` names CUDA and it can't be used, InputError for another name.
    """
    if device == "auto":
        device = "cpu" if unavailable_reason() else "cuda"
    if device == "cpu":
        return CpuRuntime()
    kind, _, index = device.partition(":")
    if kind != "cuda" or (index and not index.isdecimal()):
        raise InputError(f'device is "cpu", "cuda", "cuda:<number>" or "auto", not {device!r}')
    return cuda_runtime(int(index) if index else None)


__all__ = [
    "CpuRuntime",
    "Current",
    "DeviceName",
    "Event",
    "Graph",
    "NativeTask",
    "Runtime",
    "Stream",
    "cuda_runtime",
    "current",
    "get",
    "set_watchdog",
]


def __dir__() -> list[str]:
    return list(__all__)
