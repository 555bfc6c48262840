"""Captures of torch's CUDA graphs: one that fails leaves nothing, and graphs that take turns share their memory.

`torch.cuda.graph` synchronises the device and empties torch's caches at every capture, gives each graph its own
pool, and where the capture can't be ended leaves the captured stream as torch's current one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from weft.errors import DriverError, GraphError, WeftError

Pool = Any  # torch's name of a pool, a pair of numbers

_abandoned: list[torch.cuda.CUDAGraph] = []  # torch's host allocator still asks them which streams are theirs


class GraphMemory:
    """The pool in which graphs have what they allocate for themselves. Only for graphs of which one runs at a time, as
    those of one stream do: each writes over what another left there."""

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._graphs = 0

    def take(self) -> Pool:
        """torch's name of the pool, for one more graph."""
        if self._pool is None or not self._graphs:
            # torch drops a pool with its last graph. What it caches elsewhere can't be freed during a capture.
            torch.cuda.empty_cache()
            self._pool = torch.cuda.graph_pool_handle()
        self._graphs += 1
        return self._pool

    def give_back(self) -> None:
        """A graph was reset."""
        self._graphs -= 1


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, memory: GraphMemory) -> Iterator[None]:
    """Capture into `graph` what `stream`, and streams that join it, are given inside. Where it succeeds, `graph` is one
    of those that have `memory`.

    Where something fails, the graph is reset, torch's current stream is the one from before, and what is raised is the
    first error: as `GraphError` from it if it is torch's or the driver's, else itself.
    """
    pool = memory.take()
    first: BaseException | None = None
    with torch.cuda.stream(stream):
        try:
            graph.capture_begin(pool, capture_error_mode="thread_local")
            yield
        except BaseException as error:
            first = error
        try:
            graph.capture_end()
        except Exception as error:
            first = first or error
            _leave_pool(graph, stream, pool)
    if first is None:
        return
    graph.reset()
    memory.give_back()
    if isinstance(first, RuntimeError) and (
        isinstance(first, DriverError) or not isinstance(first, WeftError)
    ):
        raise GraphError(f"the capture failed: {first}") from first
    raise first


def _leave_pool(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Pool) -> None:
    """End what `capture_begin` began in torch's allocator; `capture_end` gives up before that where the driver refuses
    to end the capture."""
    device = stream.device_index
    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError:  # it never began, or has ended
        return
    torch._C._cuda_releasePool(device, pool)
    _abandoned.append(graph)
