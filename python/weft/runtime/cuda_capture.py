"""Captures of torch's CUDA graphs. A failed capture leaves no state behind, and graphs of one stream share memory.

This replaces `torch.cuda.graph`, which synchronizes the device and empties torch's caches at every capture and gives
each graph a pool of its own. If ending a capture fails, `torch.cuda.graph` also leaves the captured stream as torch's
current one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from weft.errors import DriverError, GraphError, WeftError
from weft.runtime.torch_internals import end_allocate_to_pool, release_pool

Pool = Any  # torch's handle of a memory pool, a pair of numbers

# Graphs whose captures the driver refused to end, kept alive: torch's host allocator still asks them for their streams.
_abandoned: list[torch.cuda.CUDAGraph] = []


class GraphPool:
    """The memory pool in which several graphs allocate. The graphs overwrite each other's memory, so only one of them
    may run at a time. Graphs of one stream run one after another."""

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._graphs = 0

    def take(self) -> Pool:
        """Count one more graph. Returns torch's handle of the pool for it."""
        if self._pool is None or not self._graphs:
            # torch drops a pool with its last graph, so a new one is needed. Cached memory of other pools can't be
            # freed during a capture, so free it now.
            torch.cuda.empty_cache()
            self._pool = torch.cuda.graph_pool_handle()
        self._graphs += 1
        return self._pool

    def release(self) -> None:
        """Note that a graph was reset."""
        self._graphs -= 1


@contextmanager
def capturing(
    graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, graph_pool: GraphPool
) -> Iterator[None]:
    """Context that captures work of `stream`, and of streams that join it, into `graph`, which then uses `graph_pool`.

    After a failure the graph is reset, and torch's current stream is the same as before. The first error counts. A
    `DriverError`, or a `RuntimeError` that is not weft's, becomes the cause of a `GraphError`. Any other is raised as
    it is.
    """
    pool = graph_pool.take()
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
    graph_pool.release()
    if isinstance(first, RuntimeError) and (
        isinstance(first, DriverError) or not isinstance(first, WeftError)
    ):
        raise GraphError(f"the capture failed: {first}") from first
    raise first


def _leave_pool(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Pool) -> None:
    """End the allocations from the pool that `capture_begin` started in torch's allocator. `capture_end` does not reach
    that point if the driver refuses to end the capture."""
    device = stream.device_index
    try:
        end_allocate_to_pool(device, pool)
    except RuntimeError:  # the allocations never started, or have ended
        return
    release_pool(device, pool)
    _abandoned.append(graph)
