"""Measures a node of a replayed graph: native and Python host nodes, device nodes, copies, and hand-offs between
threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from weft.runtime import cpu, get
from weft.runtime.interface import Runtime, Stream
from weft_bench.report import Report, median_seconds
from weft_bench.rows import Rows
from weft_bench.runtime.null_tasks import native_noop, python_noop


def run(device: str = "auto", nodes: int = 1000, repeat: int = 50) -> Report:
    """Return the microseconds per node of graphs with `nodes` equal nodes, as medians of `repeat` replays."""
    runtime = get(device)
    rows = Rows("replay")
    with rows.trying(graphs="of equal nodes"):
        rows += [{"graph": name, "us_per_node": us} for name, us in measure(runtime, nodes, repeat).items()]
    if runtime.device.type == "cpu":
        name, fill = "two streams, device and native nodes in turns", partial(hand_offs, torch.zeros(1))
        rows.append({"graph": name, "us_per_node": per_node(runtime, fill, nodes, repeat)})
        cpu.set_schedule("threads")
        try:
            us = per_node(runtime, fill, nodes, repeat)
            rows.append({"graph": f"{name}, a thread for each", "us_per_node": us})
        finally:
            cpu.synchronize()
            cpu.set_schedule("inline")
    return rows.report({"device": str(runtime.device)})


def measure(runtime: Runtime, nodes: int, repeat: int) -> dict[str, float]:
    """Return the microseconds per node of each graph, by name."""
    a = torch.zeros(16, device=runtime.device)
    b = runtime.pinned((16,), torch.float32)
    runtime.publish()
    task = native_noop()
    one: dict[str, Callable[[Stream], None]] = {
        "native host node": lambda s: s.hostfunc(task),
        "Python host node": lambda s: s.hostfunc(python_noop),
        "device node (x.add_(1))": lambda s: s.launch(a.add_, 1),
        "copy of 64 bytes": lambda s: s.copy(b, a),
    }
    found = {}
    for name, issue in one.items():

        def fill(stream: Stream, count: int, issue: Callable[[Stream], None] = issue) -> None:
            for _ in range(count):
                issue(stream)

        found[name] = per_node(runtime, fill, nodes, repeat)
    found["two streams, native nodes"] = per_node(runtime, ping_pong, nodes, repeat)
    return found


def ping_pong(stream: Stream, count: int) -> None:
    """Issue `count` native nodes that alternate between two streams. Each waits for the one before."""
    alternate(stream, count, lambda s: s.hostfunc(native_noop()), lambda s: s.hostfunc(native_noop()))


def hand_offs(x: torch.Tensor, stream: Stream, count: int) -> None:
    """Issue device nodes and native nodes alternately on two streams. If each stream has a thread, every node is a
    hand-off between threads."""
    task = native_noop()
    alternate(stream, count, lambda s: s.launch(x.add_, 1), lambda s: s.hostfunc(task))


def alternate(
    stream: Stream, count: int, first: Callable[[Stream], None], second: Callable[[Stream], None]
) -> None:
    """Issue `count` nodes alternately on `stream` and on another one. Each waits for the one before."""
    runtime = get("cpu" if stream_is_cpu(stream) else "cuda")
    streams, issue = (stream, runtime.stream()), (first, second)
    for i in range(count):
        here, there = streams[i % 2], streams[1 - i % 2]
        issue[i % 2](here)
        event = runtime.event()
        here.record(event)
        there.wait(event)


def stream_is_cpu(stream: Stream) -> bool:
    """Whether the stream belongs to the CPU runtime."""
    return isinstance(stream, cpu.Stream)


def per_node(runtime: Runtime, fill: Callable[[Stream, int], None], nodes: int, repeat: int) -> float:
    """Return the microseconds per node of a graph that `fill(stream, nodes)` fills."""
    stream = runtime.stream()
    with runtime.capture(stream) as graph:
        fill(stream, nodes)

    def once() -> None:
        graph.replay()
        stream.synchronize()

    seconds = median_seconds(once, repeat)
    graph.close()
    return seconds / nodes * 1e6
