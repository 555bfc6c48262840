"""Named outputs: tensors that a model marks during its forward. Requests can ask for them by name.

Device functions call `mark_output`, which passes the tensor to this thread's collector. If no request wants outputs,
there is no collector, and the call does nothing. A marked tensor has a row for each position: its shape is [B * T, ...]
or [B, T, ...] for tokens [B, T].
"""

from __future__ import annotations

import threading
from typing import Protocol

from torch import Tensor


class Collector(Protocol):
    """Receives marked tensors. `take` must copy a tensor to keep it, because the model may overwrite it."""

    def wants(self, name: str) -> bool: ...
    def take(self, name: str, tensor: Tensor) -> None: ...


class _Current(threading.local):
    collector: Collector | None = None


_current = _Current()


def mark_output(name: str, tensor: Tensor) -> None:
    """Pass `tensor` to the collector under `name`, if it wants that output."""
    collector = _current.collector
    if collector is not None and collector.wants(name):
        collector.take(name, tensor)


def wants_output(name: str) -> bool:
    """Whether output `name` is collected. Check this before you compute a tensor only to mark it."""
    collector = _current.collector
    return collector is not None and collector.wants(name)


class collecting:
    """Context in which `collector` receives the outputs marked on this thread; with None nothing is collected."""

    def __init__(self, collector: Collector | None) -> None:
        self._collector = collector

    def __enter__(self) -> None:
        self._before, _current.collector = _current.collector, self._collector

    def __exit__(self, *exc: object) -> None:
        _current.collector = self._before


TOP_K_LOGITS = 10
"""The number of logits per position in `TopKLogits`, largest first."""


def mark_top_logits(logits: Tensor) -> None:
    """Mark the largest logits of each position [..., V] as `TopKLogits`, and their tokens as `TopKLogitsIndices`."""
    if wants_output("TopKLogits") or wants_output("TopKLogitsIndices"):
        values, indices = logits.topk(min(TOP_K_LOGITS, logits.shape[-1]))
        mark_output("TopKLogits", values)
        mark_output("TopKLogitsIndices", indices)
