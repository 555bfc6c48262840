"""Device work on the CPU: enqueued on its stream, or captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft import _core
from weft.runtime.current import CPU
from weft.runtime.graph_memory import GraphMemory
from weft.runtime.recorder import record
from weft.runtime.torch_internals import bare_inference_mode


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
