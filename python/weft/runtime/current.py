"""The current stream of a thread.

It is the stream of the innermost `stream` or `graph` context, else torch's CUDA stream if there is CUDA, else the CPU's
default stream. This module keeps a stack of the contexts of weft's runtimes for each thread; torch keeps those of
`torch.cuda`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

CPU, CUDA = 0, 1


@dataclass(frozen=True)
class Current:
    """A driver (`CPU` or `CUDA`) and a raw stream handle."""

    driver: int
    handle: int


class _Contexts(threading.local):
    def __init__(self) -> None:
        self.stack: list[tuple[Current, int | None]] = []
        """Each context's stream, and torch's current CUDA stream when the context began."""


_contexts = _Contexts()


class TorchStream(Protocol):
    """A function that returns torch's current CUDA stream."""

    def __call__(self, initialize: bool) -> int | None:
        """The handle; None without CUDA. If `initialize` is false, the call does not initialize torch's CUDA. It
        returns 0 (the default stream) until CUDA is initialized elsewhere."""


def _no_cuda(initialize: bool) -> int | None:
    return None


_torch_stream: TorchStream = _no_cuda


def set_torch_stream(function: TorchStream) -> None:
    """Set the function from which `current` gets torch's CUDA stream. `runtime/cuda.py` calls this."""
    global _torch_stream
    _torch_stream = function


@contextmanager
def context(driver: int, handle: int) -> Iterator[None]:
    """Make a stream the current one of this thread."""
    _contexts.stack.append((Current(driver, handle), _torch_stream(initialize=False)))
    try:
        yield
    finally:
        _contexts.stack.pop()


def current() -> Current:
    """The current stream of this thread, to which host functions go."""
    if _contexts.stack:
        innermost, torch_then = _contexts.stack[-1]
        # A different stream in torch means that a `torch.cuda` context was entered inside of ours.
        if _torch_stream(initialize=False) == torch_then:
            return innermost
    torch_stream = _torch_stream(initialize=True)
    return Current(CPU, 0) if torch_stream is None else Current(CUDA, torch_stream)


def current_cpu() -> int:
    """The handle of the CPU runtime's current stream; 0 (the default stream) outside all contexts."""
    return next((c.handle for c, _ in reversed(_contexts.stack) if c.driver == CPU), 0)
