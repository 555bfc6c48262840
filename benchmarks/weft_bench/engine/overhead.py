"""Measures the cost of a guide per iteration, with engines that share a model, for guided and unguided requests.

Both sides commit the same number of tokens per iteration: one without drafts, and a forced number with EAGLE3 drafts
(`simulate_acceptance`), so that the text does not matter. Rows with a forced number say `simulated`. The sides
alternate iteration by iteration, and `ratio` is the median of the ratios within turns, so that drift cancels.
`control` is the same ratio for another unguided side, and shows how well drift cancels. The guide is the schema of
an object with more texts than any answer completes.

`grammar_us` is the time of the matchers' work on any thread. `exposed_us` is the extra time of a guided iteration,
including the application of masks. The rest of the grammar's time was hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import track

from weft_bench.engine.breakdown import breakdown
from weft_bench.engine.models import Bench, Shape
from weft_bench.engine.paired import FIELDS, GUIDE, SIMULATED, Setting, Side, ratio, take_turns
from weft_bench.report import Report
from weft_bench.rows import Rows

BATCHES = (1, 2, 4, 8, 16, 32, 64)
RANDOM_BATCHES = (1, 8)
RANDOM_SHAPE = Shape(layers=8, hidden=768)
NUM_DRAFTS = 3


def run(
    device: str = "auto",
    model: Path | None = None,
    shape: Shape | None = None,
    batches: Sequence[int] = BATCHES,
    iterations: int = 96,
    out: Path | None = None,
    with_random: bool = True,
) -> Report:
    """Return a row for each model, batch size and speculation. Times are medians of at least `iterations`.

    The model comes from a directory, or is random if `shape` is given. A random one of 110 million parameters
    follows, unless `with_random` is False. The summary breaks down the difference of the worst row by task, without
    and with drafts. `overhead-trace-*.json` in `out` show unguided and guided iterations of these rows.
    """
    first = Bench.random(device, shape) if shape else Bench.load(device, model)
    cases = [(first, batch, drafts) for drafts in (NUM_DRAFTS, 0) for batch in batches]
    second = Bench.random(device, RANDOM_SHAPE) if with_random and shape is None else None
    if second is not None:
        cases += [(second, b, drafts) for drafts in (NUM_DRAFTS, 0) for b in RANDOM_BATCHES]
    rows = Rows("overhead")
    measured: list[tuple[Bench, dict[str, Any]]] = []
    for bench, batch, num_drafts in track(cases, description="overhead", transient=True):
        with rows.trying(model=bench.name, batch=batch, drafts=num_drafts):
            rows.append(measure(bench, batch, num_drafts, iterations))
            measured.append((bench, rows[-1]))
    summary: dict[str, Any] = {
        "device": str(first.runtime.device),
        "drafter": f"EAGLE3, {NUM_DRAFTS} drafts",
        "guide": f"JSON schema: an object of {len(FIELDS)} texts",
        "tokens_per_iteration": f"simulated with drafts: {SIMULATED} forced",
    }
    if rows:
        summary["worst_ratio"] = min(row["ratio"] for row in rows)
        summary["control"] = f"{min(row['control'] for row in rows)} to {max(row['control'] for row in rows)}"
    for kind, drafts in (("without_drafts", 0), ("with_drafts", NUM_DRAFTS)):
        if not any(row["drafts"] == drafts for _, row in measured):
            continue
        bench, row = worst(measured, drafts)
        name = f"overhead-trace-{kind.replace('_', '-')}.json"
        trace = out / name if out is not None else None
        summary[f"worst_{kind}"] = f"{bench.name}, batch {row['batch']}, context {row['context']}"
        with rows.trying(breakdown=summary[f"worst_{kind}"]):
            tasks = breakdown(bench, row["batch"], drafts, 2 * iterations, row["context"], trace)
            summary[f"worst_{kind}_by_task"] = tasks
            if trace is not None:
                summary[f"worst_{kind}"] += f": {name}"
    for each in (first, second):
        if each is not None:
            each.close()
    return rows.report(summary)


def worst(rows: Sequence[tuple[Bench, dict[str, Any]]], num_drafts: int) -> tuple[Bench, dict[str, Any]]:
    """Return the row with the worst ratio for this number of drafts, with its model."""
    return min((pair for pair in rows if pair[1]["drafts"] == num_drafts), key=lambda pair: pair[1]["ratio"])


def measure(bench: Bench, batch: int, num_drafts: int, iterations: int) -> dict[str, Any]:
    """Measure one row: guided and unguided iterations alternate."""
    setting = Setting(bench, batch, num_drafts)
    plain, guided, second = (Side(setting, guide) for guide in (None, GUIDE, None))
    try:
        turns = take_turns((plain, guided, second), iterations)
    finally:
        for side in (plain, guided, second):
            side.engine.close()
    return row(bench.name, batch, num_drafts, plain, guided, turns)


def row(
    model: str, batch: int, num_drafts: int, plain: Side, guided: Side, turns: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """Return a row of the report. `turns` are those of `plain`, `guided` and another unguided side."""
    grammar_us = median(guided.grammar_seconds) * 1e6
    exposed_us = median(seconds[1] - seconds[0] for seconds in turns) * 1e6
    return {
        "model": model,
        "drafts": num_drafts,
        "batch": batch,
        "simulated": bool(num_drafts),
        "context": round(plain.context),
        "unguided_us": round(plain.us),
        "guided_us": round(guided.us),
        "ratio": round(ratio(turns, 0, 1), 3),
        "control": round(ratio(turns, 0, 2), 3),
        "exposed_us": round(exposed_us),
        "grammar_us": round(grammar_us),
        "hidden_percent": hidden_percent(exposed_us, grammar_us),
        "tokens_guided": round(guided.tokens_per_iteration, 2),
        "tokens_unguided": round(plain.tokens_per_iteration, 2),
    }


def hidden_percent(exposed_us: float, grammar_us: float) -> int:
    """Return the percentage of the grammar's work that was hidden, 0 to 100. 0 if there was no work."""
    if grammar_us <= 0:
        return 0
    return round(100 * min(1.0, max(0.0, 1 - exposed_us / grammar_us)))
