"""Measures the engine loop's own time per iteration: the time between iterations that is neither the device's nor a
wait.

It is measured in two ways. By the executor's statistics, it is the time of an iteration minus its wait for the
device. On the CPU runtime, that wait contains the model's and the grammar's work. By a trace of the CPU runtime, it
is the time in which no stream runs. The trace also contains the time between two iterations: publishing responses,
taking requests, and waiting for the GIL while clients hold it. The statistics are also taken with clients that do
not stream, which leaves only the engine's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any

from weft.errors import InputError
from weft.executor import IterationStats
from weft.trace import Slice, record
from weft.trace.timeline import begins_of
from weft_bench.serve.clients import Clients, Load

FORWARD = "target_forward"
TIMESTAMP = "%m-%d-%Y %H:%M:%S.%f"


def measure_loop(clients: Clients, load: Load, seconds: float) -> dict[str, Any]:
    """Return the median microseconds of iterations in which all of `load.clients` decode and no prompt is prefilled."""
    executor = clients.executor
    whole = Clients(executor, replace(clients.workload, streaming=False))
    executor.get_latest_iteration_stats()
    whole.window(load, seconds)
    not_streaming = own_times(executor.get_latest_iteration_stats(), load.clients)
    clients.window(load, seconds)
    stats = executor.get_latest_iteration_stats()
    found = own_times(stats, load.clients) | {"own_not_streaming_us": not_streaming["own_us"]}
    if executor.client.built.runtime.device.type == "cpu":
        with record() as slices:
            clients.window(load, seconds)
        found["idle_in_trace_us"] = round(median(idle_times(slices)))
    return {"guided_percent": load.guided_percent, "batch": load.clients} | found


def own_times(stats: Sequence[IterationStats], batch: int) -> dict[str, int]:
    """Return medians over iterations of a whole batch: the time of the iteration, the loop's own part of it, and the
    time before the next iteration."""
    own, whole, between = [], [], []
    for one, following in pairwise(stats):
        if not (is_whole(one, batch) and is_whole(following, batch)):
            continue
        whole.append(one.iter_latency_ms * 1e3)
        own.append((one.iter_latency_ms - one.model_latency_ms) * 1e3)
        period = datetime.strptime(following.timestamp, TIMESTAMP) - datetime.strptime(
            one.timestamp, TIMESTAMP
        )
        between.append(period.total_seconds() * 1e6 - following.iter_latency_ms * 1e3)
    if not own:
        raise InputError(f"no two iterations over {batch} requests came one after another; give more seconds")
    return {
        "iterations": len(own),
        "iteration_us": round(median(whole)),
        "own_us": round(median(own)),
        "between_us": round(median(between)),
    }


def is_whole(stats: IterationStats, batch: int) -> bool:
    """Whether `batch` requests decoded in the iteration, and none was in prefill, joined or ended."""
    found = stats.inflight_batching_stats
    return (
        found is not None
        and found.num_gen_requests == batch
        and not found.num_context_requests
        and not stats.num_completed_requests
    )


def idle_times(slices: Sequence[Slice]) -> list[float]:
    """Return the idle microseconds of each iteration, from one forward of the target to the next."""
    idle: list[float] = []
    since, busy_until = 0.0, None
    begins = {id(one) for one in begins_of(slices, FORWARD)}
    for one in sorted(slices, key=lambda s: s.begin_us):
        if busy_until is not None:
            since += max(0.0, one.begin_us - busy_until)
        busy_until = max(one.end_us, busy_until or 0.0)
        if id(one) in begins:
            idle.append(since)
            since = 0.0
    return idle[1:]
