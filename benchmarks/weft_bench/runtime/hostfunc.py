"""Measures the launch of a host function, eager and captured, and cuda.core's graph callbacks if there is CUDA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weft.runtime import get
from weft.runtime.interface import NativeTask, Runtime, Stream
from weft_bench.report import Report, median_seconds
from weft_bench.rows import Rows
from weft_bench.runtime.null_tasks import native_noop, python_noop


def run(device: str = "auto", launches: int = 1000, repeat: int = 30) -> Report:
    """Return the microseconds per launch, and from the launch to completion. They are medians of `repeat` runs of
    `launches` launches."""
    runtime = get(device)
    stream = runtime.stream()
    task = native_noop()
    rows = Rows("hostfunc")
    for name, issue in {
        "eager, native": lambda s: s.hostfunc(task),
        "eager, Python": lambda s: s.hostfunc(python_noop),
    }.items():
        with rows.trying(what=name):
            rows.append({"what": name, **eager(stream, issue, launches, repeat)})
    for name, issue in {
        "captured, native": lambda s: s.hostfunc(task),
        **polled(runtime, replace(task, polled=True)),
        "captured, Python": lambda s: s.hostfunc(python_noop),
    }.items():
        with rows.trying(what=name):
            rows.append({"what": name, **captured(runtime, stream, issue, launches, repeat)})
    if runtime.device.type == "cuda":
        with rows.trying(what="cuda.core"):  # its interface differs between releases
            rows += cuda_core(launches, repeat)
    return rows.report({"device": str(runtime.device)})


def polled(runtime: Runtime, task: NativeTask) -> dict[str, Callable[[Stream], None]]:
    """Return a launch of the task for a thread that polls, if the device supports polling."""
    if runtime.prepare_polling() is not None:
        return {}
    return {"captured, native, polled": lambda s: s.hostfunc(task)}


def eager(stream: Stream, issue: Callable[[Stream], None], launches: int, repeat: int) -> dict[str, float]:
    """Measure the call that launches, and launch, run and release together."""

    def issue_all() -> None:
        for _ in range(launches):
            issue(stream)

    def issue_and_wait() -> None:
        issue_all()
        stream.synchronize()

    whole = median_seconds(issue_and_wait, repeat)
    calls = []
    for _ in range(repeat):
        calls.append(median_seconds(issue_all, 1, warmup=0))
        stream.synchronize()
    calls.sort()
    return {"us_per_launch": calls[len(calls) // 2] / launches * 1e6, "us_until_run": whole / launches * 1e6}


def captured(
    runtime: Runtime, stream: Stream, issue: Callable[[Stream], None], launches: int, repeat: int
) -> dict[str, float]:
    """Measure the capture of a launch, and a run of it in a replay."""
    graphs = []

    def capture() -> None:
        with runtime.capture(stream) as graph:
            for _ in range(launches):
                issue(stream)
        graphs.append(graph)

    seconds = median_seconds(capture, max(3, repeat // 10), warmup=1)

    def replay() -> None:
        graphs[0].replay()
        stream.synchronize()

    replayed = median_seconds(replay, repeat)
    for graph in graphs:
        graph.close()
    return {"us_per_launch": seconds / launches * 1e6, "us_until_run": replayed / launches * 1e6}


def cuda_core(launches: int, repeat: int) -> list[dict[str, Any]]:
    """Measure the same with cuda.core's GraphBuilder, if that package is installed."""
    try:
        from cuda.core import Device
    except ImportError:
        return []
    device = Device()
    device.set_current()
    stream = device.create_stream()
    builder = device.create_graph_builder().begin_building()

    def capture() -> None:
        for _ in range(launches):
            builder.callback(python_noop)

    seconds = median_seconds(capture, 1, warmup=0)
    graph = builder.end_building().complete()

    def replay() -> None:
        graph.launch(stream)
        stream.sync()

    replayed = median_seconds(replay, repeat)
    return [
        {
            "what": "captured, Python, cuda.core",
            "us_per_launch": seconds / launches * 1e6,
            "us_until_run": replayed / launches * 1e6,
        }
    ]
