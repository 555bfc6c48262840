"""A stream whose launches are captured in segments, with host work between the segments.

Every round makes the same calls. `launch` collects device work, and `flush` enqueues it as one segment. A segment runs
eagerly in the first round, is captured and replayed in the second, and is replayed in all later rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.runtime.interface import Event, Graph, NativeTask, Runtime, Stream


class SegmentedStream:
    """A wrapper of the stream `inner`. `launch` collects work, `flush` enqueues it as a segment, and any other work
    flushes first. `begin` starts a round; segments are numbered by their order in it.

    With `capture=False` all work is enqueued immediately, and rounds may differ.
    """

    def __init__(self, runtime: Runtime, inner: Stream, capture: bool = True) -> None:
        self.inner = inner
        self._capture = capture
        self.num_replays = 0
        self._runtime = runtime
        self._rounds = 0
        self._next = 0
        self._graphs: list[Graph] = []
        self._pending: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def begin(self) -> None:
        """Start the next round. Drop work that a failed round collected but did not enqueue."""
        self._pending.clear()
        self._rounds += 1
        self._next = 0

    def launch(self, fn: Callable[..., object], *args: Any) -> None:
        """Collect device work. Every round must launch the same work with the same arguments."""
        if not self._capture:
            self.inner.launch(fn, *args)
            return
        self._pending.append((fn, args))

    @property
    def handle(self) -> int:
        """The inner stream's handle."""
        return self.inner.handle

    def hostfunc(self, task: NativeTask | Callable[..., object], *args: Any) -> None:
        """Enqueue host work after the collected work."""
        self.flush()
        self.inner.hostfunc(task, *args)

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """Enqueue a copy after the collected work."""
        self.flush()
        self.inner.copy(dst, src)

    def record(self, event: Event) -> None:
        """Record `event` after the collected work."""
        self.flush()
        self.inner.record(event)

    def wait(self, event: Event) -> None:
        """Make work after the collected work wait for `event`."""
        self.flush()
        self.inner.wait(event)

    def synchronize(self) -> None:
        """Flush, and wait for all work."""
        self.flush()
        self.inner.synchronize()

    def flush(self) -> None:
        """Enqueue the collected work as one segment."""
        if not self._pending:
            return
        if self._rounds == 1:
            self._issue()
        else:
            if self._next == len(self._graphs):
                with self._runtime.capture(self.inner) as graph:
                    self._issue()
                self._graphs.append(graph)
            self._graphs[self._next].replay()
            self.num_replays += 1
            self._next += 1
        self._pending.clear()

    def close(self) -> None:
        """Free the graphs."""
        for graph in self._graphs:
            graph.close()
        self._graphs.clear()

    def _issue(self) -> None:
        for fn, args in self._pending:
            self.inner.launch(fn, *args)
