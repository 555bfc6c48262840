"""Records a runtime's work as `Slice`s, by torch's profiler on a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from weft.runtime import cpu
from weft.runtime.interface import Runtime
from weft.trace.timeline import Slice, slices_of, write_chrome


@contextmanager
def record(origin: float | None = None) -> Iterator[list[Slice]]:
    """Record the CPU runtime's work. The yielded list is filled when the `with` block ends.

    The slices' times count from `origin`, a time of `time.perf_counter` (default: the begin of the first slice)."""
    slices: list[Slice] = []
    with cpu.trace() as nodes:
        yield slices
    # The runtime's clock and `perf_counter` are the same monotonic clock.
    start = min((node.begin for node in nodes), default=0.0) if origin is None else origin
    slices += [
        Slice(
            node.name or node.kind,
            node.kind,
            node.stream,
            node.thread,
            (node.begin - start) * 1e6,
            (node.end - start) * 1e6,
        )
        for node in nodes
    ]


@contextmanager
def record_on(runtime: Runtime, with_grids: bool = False) -> Iterator[list[Slice]]:
    """Record `runtime` until all work launched in the `with` block has finished. Only then is the yielded list
    filled.

    On a GPU, `with_grids` appends the launch grid to kernel labels."""
    if runtime.device.type == "cpu":
        with record() as slices:
            yield slices
            runtime.synchronize()
        return
    slices = []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        with recording(runtime, path):
            yield slices
        slices += slices_of(json.loads(path.read_text()), with_grids)


@contextmanager
def recording(runtime: Runtime, path: Path) -> Iterator[None]:
    """Record `runtime` until all work launched in the `with` block has finished, and write Chrome/Perfetto JSON to
    `path`."""
    if runtime.device.type == "cpu":
        with record() as slices:
            yield
            runtime.synchronize()
        write_chrome(slices, path)
    else:
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            yield
            runtime.synchronize()
        profile.export_chrome_trace(str(path))
