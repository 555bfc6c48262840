"""A stream whose launches are captured in segments, with the host at work between them.

The same calls are made in every round: `launch` only collects, and `flush` issues what was collected. In the first
round a segment runs eagerly, in the second it is captured, from then on replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.runtime.interface import Event, Graph, NativeTask, Runtime, Stream


class SegmentedStream:
    """Segments of `inner`, by their order in a round; `begin` starts one. Other work goes to `inner` after a flush.

    With `capture=False` everything is issued at once, and no round need be the same.
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
        """Start the next round. What a failed round did not issue is dropped."""
        self._pending.clear()
        self._rounds += 1
        self._next = 0

    def launch(self, fn: Callable[..., object], *args: Any) -> None:
        """Collect device work; in every round the same, with the same arguments."""
        if not self._capture:
            self.inner.launch(fn, *args)
            return
        self._pending.append((fn, args))

    @property
    def handle(self) -> int:
        """The inner stream's."""
        return self.inner.handle

    def hostfunc(self, task: NativeTask | Callable[..., object], *args: Any) -> None:
        """Host work after what was collected."""
        self.flush()
        self.inner.hostfunc(task, *args)

    def copy(self, dst: torch.Tensor, src: torch.Tensor) -> None:
        """A copy after what was collected."""
        self.flush()
        self.inner.copy(dst, src)

    def record(self, event: Event) -> None:
        """Record after what was collected."""
        self.flush()
        self.inner.record(event)

    def wait(self, event: Event) -> None:
        """Wait after what was collected."""
        self.flush()
        self.inner.wait(event)

    def synchronize(self) -> None:
        """Wait for all of it."""
        self.flush()
        self.inner.synchronize()

    def flush(self) -> None:
        """Issue the segment that was collected."""
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
        """Let go of the graphs."""
        for graph in self._graphs:
            graph.close()
        self._graphs.clear()

    def _issue(self) -> None:
        for fn, args in self._pending:
            self.inner.launch(fn, *args)
