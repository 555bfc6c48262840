"""Captures functions with the CPU runtime, so that tests can replay them and look at the results."""

from __future__ import annotations

from collections.abc import Callable

import weft.runtime.cpu as cpu
from weft import _core
from weft.runtime.graph_memory import Arena


class Captured:
    """A graph with one launch for each of the given functions."""

    def __init__(
        self,
        *functions: Callable[[], object],
        pool: Arena | None = None,
        stream: cpu.Stream | None = None,
    ) -> None:
        self.stream, self.graph = stream or cpu.Stream(), cpu.CUDAGraph()
        with cpu.graph(self.graph, pool, self.stream):
            for fn in functions:
                self.stream.launch(fn)

    def replay(self) -> None:
        """Replay the graph once, and wait until it has finished."""
        self.graph.launch_on(self.stream.handle)
        self.stream.synchronize()


def labels(*functions: Callable[[], object]) -> list[str]:
    """The labels of the nodes of a graph with one launch for each of the given functions."""
    stream, graph = cpu.Stream(), cpu.CUDAGraph()
    with cpu.stream(stream):
        graph.capture_begin()
        for fn in functions:
            stream.launch(fn)
        raw = graph.end_capture()
    found = [label for _, _, label in _core.graph_nodes(0, raw)]
    _core.graph_destroy(0, raw)
    return found
