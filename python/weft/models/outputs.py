"""Tensors that a model gives out by name: those that it marks while it computes.

`mark_output` is a device function's: it hands the tensor, as it is at that moment, to this thread's collector. There is
none unless a request asked, and then nothing happens. The rows of a marked tensor are positions: [B * T, ...] or
[B, T, ...] for tokens [B, T].
"""

from __future__ import annotations

import threading
from typing import Protocol

from torch import Tensor


class Collector(Protocol):
    """Takes what is marked. `take` copies what it keeps: the model may go on in the same memory."""

    def wants(self, name: str) -> bool: ...
    def take(self, name: str, tensor: Tensor) -> None: ...


class _Current(threading.local):
    collector: Collector | None = None


_current = _Current()


def mark_output(name: str, tensor: Tensor) -> None:
    """Give `tensor` out under `name`, if it is collected."""
    collector = _current.collector
    if collector is not None and collector.wants(name):
        collector.take(name, tensor)


def wants_output(name: str) -> bool:
    """Whether `name` is collected: asked before a tensor is computed for this alone."""
    collector = _current.collector
    return collector is not None and collector.wants(name)


class collecting:
    """Context in which `collector` has what is marked on this thread; None: nothing has."""

    def __init__(self, collector: Collector | None) -> None:
        self._collector = collector

    def __enter__(self) -> None:
        self._before, _current.collector = _current.collector, self._collector

    def __exit__(self, *exc: object) -> None:
        _current.collector = self._before
