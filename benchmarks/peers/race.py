"""Runs the whole comparison: all groups, the report, and the figure."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from weft_bench.report import Report
from weft_bench.rows import Rows

from .checkpoints import checkpoint
from .environments import Environments
from .group import Group, Plan, measure
from .kept import without
from .lineup import DENSE_ENGINES, GGUF_ENGINES, Entrant, lineup
from .plot import draw_all, draw_one
from .prompts import pool
from .ratios import Row, against_peers, targets

SIMD = ("avx", "avx2", "f16c", "fma", "avx512", "avx_vnni", "amx")


@dataclass(frozen=True)
class Choice:
    """The combinations to measure."""

    checkpoints: Sequence[str]
    engines: Sequence[str]
    bits: Sequence[int]
    batches: Sequence[int]
    forms: Sequence[bool]
    drafts: bool = True

    def groups(self, name: str, plan: Plan, cache: Path) -> list[Group]:
        """Return the groups for a checkpoint. The checkpoint is made if it is missing."""
        made = checkpoint(name, cache)
        prompts = pool(made)
        return [
            Group(made, made.dtype(bits), batch, prompts, plan)
            for bits in self.bits
            if made.dtype(bits)
            for batch in self.batches
        ]


def race(
    choice: Choice,
    plan: Plan,
    environments: Environments,
    console: Console,
    out: Path | None,
    kept: Sequence[Row] = (),
) -> Report:
    """Measure every group, print its rows at once, and write the report and the figure to `out`. The report also
    contains the `kept` rows of other groups."""
    rows, load, begin = Rows("peers"), os.getloadavg()[0], time.monotonic()
    rows += kept

    def failed(group: Group, entrant: Entrant, error: Exception) -> None:
        console.print(f"{entrant.name} is out: {error}", markup=False)
        rows.failures.append({**group.what, "side": entrant.name, "error": str(error)})

    groups: list[Group] = []
    for name in choice.checkpoints:
        with rows.trying(checkpoint=name):
            groups += choice.groups(name, plan, environments.cache)
    for group in groups:
        engines = GGUF_ENGINES if group.dtype == group.checkpoint.quantized else DENSE_ENGINES
        entrants = lineup(group.checkpoint.name, [e for e in choice.engines if e in engines], choice.drafts)
        with rows.trying(**group.what):
            found = measure(group, entrants, choice.forms, environments.start, partial(failed, group))
            rows[:] = [*without(rows, group.what), *found]
            Report(f"peers, {_title(group)}", [shown(row) for row in found]).show(console)
    report = rows.report(_summary(rows, plan, load, time.monotonic() - begin))
    _end(report, console, out)
    return report


def shown(row: Row) -> Row:
    """Return a row for printing, with medians in place of values by round."""
    dropped = ("rounds_tokens_per_s", "rounds_user_tokens_per_s", "versions", "checkpoint", "dtype", "batch")
    medians = {key.removeprefix("rounds_"): round(median(row[key]), 1) for key in dropped[:2]}
    kept = {key: value for key, value in row.items() if key not in dropped}
    return {
        "engine": kept.pop("engine"),
        "drafter": kept.pop("drafter"),
        "K": kept.pop("K"),
        **kept,
        **medians,
    }


def in_words(row: Row) -> Row:
    """Return a row of ratios for printing. Its group, and the best drafters of both engines, are joined into one
    column each."""
    form = "guided" if row["guided"] else "free"
    return {
        "group": f"{row['checkpoint'].split('-135M')[0]} {row['dtype']} {row['batch']} {form}",
        "weft over": row["weft_over"],
        "no drafts": row["without_drafts"],
        "best": row["best_over_best"],
        "best drafters": f"{row['best_of_weft']} ÷ {row['best_of_peer']}",
    }


def simd() -> list[str]:
    """Return the SIMD extensions of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = next((line.split(":", 1)[1].split() for line in lines if line.startswith("flags")), [])
    return sorted(flag for flag in flags if flag.startswith(SIMD))


def _title(group: Group) -> str:
    return ", ".join(f"{value}" if key != "batch" else f"batch {value}" for key, value in group.what.items())


def _summary(rows: Rows, plan: Plan, load: float, seconds: float) -> dict[str, Any]:
    versions: dict[str, dict[str, str]] = {row["engine"]: row["versions"] for row in rows}
    return {
        **asdict(plan),
        "simd": simd(),
        "load_before": round(load, 2),
        "took_s": round(seconds),
        "sides": versions,
        "against_peers": against_peers(rows),
        "targets": targets(rows),
    }


def _end(report: Report, console: Console, out: Path | None) -> None:
    tables = {"against peers": [in_words(row) for row in report.summary["against_peers"]]}
    for name, rows in {**tables, "targets": report.summary["targets"]}.items():
        if rows:
            Report(f"peers: {name}", rows).show(console)
    if out is None:
        return
    console.print(f"wrote {report.write(out)}")
    if report.rows:
        draw_one(report.rows, out / "peers.svg")
        draw_all(report.rows, out / "peers-all.svg")
        console.print(f"wrote {out / 'peers.svg'} and {out / 'peers-all.svg'}")
