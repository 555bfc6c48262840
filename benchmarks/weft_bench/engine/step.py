"""Compares the time of an iteration with the bound by memory bandwidth, for a model with an EAGLE3 head: random
weights in a shape, or a directory.

`bound_us` is the number of bytes that an iteration must read (`bandwidth.py`) divided by the bandwidth of a copy on
the device. `over_bound` is the time of an unguided iteration in one graph, divided by `bound_us`. The same iteration
also runs guided: in one graph, in split graphs and without graphs. All of them alternate. The time between two
tokens of a request is reported too. With drafts, random weights never agree, so the number of committed tokens per
iteration is forced. These rows say `simulated`, with the number of kernels that this adds (`simulated_kernels`).

`over_device` and `guided_over_device` are the time of an iteration in one graph divided by the time in which its work
runs, on any stream: kernels, copies and the grammar's tasks. The rest is the host's. Both times are of the same
iterations, which are recorded, after the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

from weft_bench.engine.bandwidth import Traffic, copy_bandwidth, traffic
from weft_bench.engine.breakdown import recordings
from weft_bench.engine.models import Bench, shape_of
from weft_bench.engine.paired import GUIDE, SIMULATED, Setting, Side, ratio, take_turns
from weft_bench.engine.simulated import simulated_operations
from weft_bench.report import Report
from weft_bench.rows import Rows

BATCHES = (1, 2, 4, 8, 16, 32, 64)
NUM_DRAFTS = (0, 3)
CONTEXT = {"cpu": 64, "cuda": 512}
ROOM = 256
"""The length of an answer in tokens. Then a new request takes its place."""


def run(
    device: str = "auto",
    shape: str = "small",
    batches: Sequence[int] = BATCHES,
    num_drafts: Sequence[int] = NUM_DRAFTS,
    iterations: int = 64,
    context: int | None = None,
    model: Path | None = None,
) -> Report:
    """Return a row for each number of drafts and batch size. Times are medians of at least `iterations`. Prompts
    have `context` tokens. The model comes from a directory if `model` is given."""
    bench = Bench.load(device, model) if model is not None else Bench.random(device, shape_of(shape))
    name = shape if model is None else bench.name
    prompt_tokens = context or CONTEXT[bench.runtime.device.type]
    bandwidth = copy_bandwidth(bench.runtime)
    cases = [(drafts, batch) for drafts in num_drafts for batch in batches]
    rows = Rows("step")
    for drafts, batch in track(cases, description="step", transient=True):
        with rows.trying(drafts=drafts, batch=batch):
            simulates = model is None and drafts > 0
            rows.append(measure(bench, name, batch, drafts, simulates, iterations, prompt_tokens, bandwidth))
    dtype = str(bench.model.config.dtype).removeprefix("torch.")
    source = f"random, {dtype}: {shape}, {shape_of(shape)}" if model is None else f"{bench.name}, {dtype}"
    summary = {
        "device": str(bench.runtime.device),
        "weights": source,
        "bandwidth_gb_per_s": round(bandwidth / 1e9, 3),
    }
    if any(row["simulated"] for row in rows):
        summary["simulated"] = f"rows with drafts: {SIMULATED} tokens per iteration forced"
    if bench.runtime.device.type == "cpu":
        summary["over_bound"] = (
            "says little on a CPU: caches hold small weights, arithmetic bounds large batches"
        )
    bench.close()
    return rows.report(summary)


def measure(
    bench: Bench,
    shape: str,
    batch: int,
    num_drafts: int,
    simulates: bool,
    iterations: int,
    prompt_tokens: int,
    bandwidth: float,
) -> dict[str, Any]:
    """Measure one row: four engines with the same weights alternate. `simulates`: the number of committed tokens per
    iteration is forced."""
    simulated = SIMULATED if simulates else None
    setting = Setting(bench, batch, num_drafts, prompt_tokens + ROOM, prompt_tokens, simulated)
    side = partial(Side, setting)
    with ExitStack() as engines:

        def opened(made: Side) -> Side:
            engines.callback(made.engine.close)
            return made

        plain, guided = opened(side(None)), opened(side(GUIDE))
        split, eager = opened(side(GUIDE, graphs="split")), opened(side(GUIDE, graphs="none"))
        sides = (plain, guided, split, eager)
        turns = take_turns(sides, iterations)
        read = traffic(bench.model.config, bench.head, batch, num_drafts, plain.context)
        measured = row(shape, batch, num_drafts, simulates, sides, turns, read, bandwidth)
        for name, of in (("", plain), ("guided_", guided)):
            recorded = recordings(bench, of, iterations)
            measured[f"{name}device_us"] = round(median(r.busy_us for r in recorded))
            measured[f"{name}over_device"] = round(
                median(r.total_us / r.turns / r.busy_us for r in recorded), 3
            )
    return measured


def row(
    shape: str,
    batch: int,
    num_drafts: int,
    simulates: bool,
    sides: tuple[Side, Side, Side, Side],
    turns: Sequence[Sequence[float]],
    read: Traffic,
    bandwidth: float,
) -> dict[str, Any]:
    """Return a row of the report. The sides are unguided, and guided in one graph, in split graphs and without
    graphs; `turns` are theirs."""
    plain, guided, split, eager = sides
    bound_us = read.total / bandwidth * 1e6
    return {
        "shape": shape,
        "drafts": num_drafts,
        "batch": batch,
        "simulated": simulates,
        "simulated_kernels": simulated_operations(SIMULATED, num_drafts) if simulates else 0,
        "context": round(plain.context),
        "weights_mb": round((read.target + read.head) / 1e6, 3),
        "kv_mb": round(read.kv / 1e6, 3),
        "logits_mb": round(read.logits / 1e6, 3),
        "read_mb": round(read.total / 1e6, 3),
        "bound_us": round(bound_us, 1),
        "unguided_us": round(plain.us),
        "over_bound": round(plain.us / bound_us, 3),
        "guided_us": round(guided.us),
        "guided_over_bound": round(guided.us / bound_us, 3),
        "tokens_unguided": round(plain.tokens_per_iteration, 2),
        "tokens_guided": round(guided.tokens_per_iteration, 2),
        "itl_unguided_us": round(plain.us / plain.tokens_per_iteration),
        "itl_guided_us": round(guided.us / guided.tokens_per_iteration),
        "unguided_over_guided": round(ratio(turns, 0, 1), 3),
        "split_us": round(split.us),
        "eager_us": round(eager.us),
        "split_over_one": round(ratio(turns, 2, 1), 3),
        "eager_over_one": round(ratio(turns, 3, 1), 3),
    }
