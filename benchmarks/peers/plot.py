"""Plots the total throughput of all users against the speed of a single user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from weft_bench.figures import COLOURS

from .lineup import ENGINES
from .ratios import GROUP, Row, best, pick, speed


def series(rows: Sequence[Row]) -> dict[str, list[tuple[float, float]]]:
    """Return the lines of a panel, with points (tokens/s of one user, tokens/s of all) by batch size.

    Each engine has a line without drafts, and one with its best drafter at each batch size.
    """
    lines: dict[str, list[tuple[float, float]]] = {}
    batches = sorted({row["batch"] for row in rows})
    for engine in ENGINES:
        own = pick(rows, engine=engine)
        plain = pick(own, drafter="none")
        drafting = [row for row in own if row["drafter"] != "none"]
        for label, of in ((engine, plain), (f"{engine}, drafts", drafting)):
            found = [best(pick(of, batch=batch)) for batch in batches]
            points = [
                (median(row["rounds_user_tokens_per_s"]), speed(row)) for row in found if row is not None
            ]
            if points:
                lines[label] = points
    return lines


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write the figure: a row of panels for each checkpoint, a panel for each dtype and form. Needs `weft[plot]`."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    keys = [key for key in GROUP if key != "batch"]
    panels = list(dict.fromkeys(tuple(row[key] for key in keys) for row in rows))
    checkpoints = list(dict.fromkeys(panel[0] for panel in panels))
    widest = max(sum(panel[0] == name for panel in panels) for name in checkpoints)
    figure = Figure(figsize=(3.6 * widest, 3.6 * len(checkpoints) + 0.8))
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(checkpoints), widest, squeeze=False, sharex="row", sharey="row")
    for axes, name in zip(grid, checkpoints, strict=True):
        here = [panel for panel in panels if panel[0] == name]
        for axis in axes[len(here) :]:
            axis.set_visible(False)
        for axis, panel in zip(axes, here, strict=False):
            _panel(axis, pick(rows, **dict(zip(keys, panel, strict=True))))
            axis.set_title(f"{name}, {panel[1]}, {'guided' if panel[2] else 'free'}", fontsize=8)
    for axis in grid[:, 0]:
        axis.set_ylabel("tokens/s, all users")
    for axis in grid[-1]:
        axis.set_xlabel("tokens/s, one user")
    _legend(figure, grid, sorted({row["batch"] for row in rows}))
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "weft"}):  # equal figures must give equal files
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _panel(axis: Any, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    for label, points in series(rows).items():
        engine, _, drafts = label.partition(", ")
        colour = COLOURS[ENGINES.index(engine)]
        style = "-" if drafts else "--"
        axis.plot(*zip(*points, strict=True), label=label, color=colour, linestyle=style, marker=".")
    axis.set_xscale("log")
    axis.set_yscale("log")
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ticks.set_major_formatter(FormatStrFormatter("%g"))
        ticks.set_minor_formatter(NullFormatter())
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _legend(figure: Any, grid: Any, batches: Sequence[int]) -> None:
    named = {}
    for axis in grid.flat:
        named.update(dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True)))
    told = ", ".join(map(str, batches))
    figure.suptitle(f"Batches of {told} requests along each line; dashed: without drafts", fontsize=10)
    figure.legend(named.values(), named.keys(), loc="lower center", ncols=4, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
