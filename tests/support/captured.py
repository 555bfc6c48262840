"""Functions captured by the CPU runtime, for what replays of them compute."""

from __future__ import annotations

from collections.abc import Callable

import weft.runtime.cpu as cpu
from weft.runtime.graph_memory import Arena


class Captured:
    """Functions launched in one graph."""

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
        """Once, to its end."""
        self.graph.launch_on(self.stream.handle)
        self.stream.synchronize()
