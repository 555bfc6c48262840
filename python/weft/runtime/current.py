"""Which stream is current.

That of the innermost `stream` or `graph` context, else CUDA's where there is one, else the CPU's.
Contexts of weft's runtimes are kept here, for each thread. torch keeps those of `torch.cuda` itself, so
what was current in torch when a context began is kept too: a change since then is a `torch.cuda` context
further in.
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


_contexts = _Contexts()


class TorchStream(Protocol):
    """torch's current CUDA stream."""

    def __call__(self, initialize: bool) -> int | None:
        """Its handle; None where there is no CUDA, 0 (the default stream) where it is idle and stays so."""


def _no_cuda(initialize: bool) -> int | None:
    return None


_torch_stream: TorchStream = _no_cuda


def set_torch_stream(function: TorchStream) -> None:
    """Where `current` learns torch's current CUDA stream from; `runtime/cuda.py` sets it."""
    global _torch_stream
    _torch_stream = function


@contextmanager
def context(driver: int, handle: int) -> Iterator[None]:
    """Make a stream the innermost one on this thread."""
    _contexts.stack.append((Current(driver, handle), _torch_stream(initialize=False)))
    try:
        yield
    finally:
        _contexts.stack.pop()


def current() -> Current:
    """The stream that host functions go to."""
    if _contexts.stack:
        innermost, torch_then = _contexts.stack[-1]
        if _torch_stream(initialize=False) == torch_then:
            return innermost
    torch_stream = _torch_stream(initialize=True)
    return Current(CPU, 0) if torch_stream is None else Current(CUDA, torch_stream)


def current_cpu() -> int:
    """The handle of the CPU runtime's current stream, 0 (the default stream) outside all contexts."""
    return next((c.handle for c, _ in reversed(_contexts.stack) if c.driver == CPU), 0)
