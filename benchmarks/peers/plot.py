"""Plots the total throughput of all users against the speed of a single user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from .checkpoints import SMOLLM2
from .lineup import ENGINES
from .ratios import GROUP, Row, best, pick, speed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2f81d6", "#e0601a", "#5a9a3c", "#b4549e")
"""Of `ENGINES`. Like `INK`, they are readable on white and on a dark page."""
INK = "#6e7781"
PANEL = tuple(key for key in GROUP if key != "batch")
FRONT = (SMOLLM2, "bfloat16", True)
"""The panel of `draw_one`: checkpoint, dtype, guided."""
LABEL_POINTS = 17
"""The smallest distance between two lines' names."""

Point = tuple[int, float, float]


def series(rows: Sequence[Row]) -> dict[str, list[Point]]:
    """Return the lines of a panel, with points (batch, tokens/s of one user, tokens/s of all) by batch size.

    Each engine has a line without drafts, and one with its best drafter at each batch size.
    """
    lines: dict[str, list[Point]] = {}
    batches = sorted({row["batch"] for row in rows})
    for engine in ENGINES:
        own = pick(rows, engine=engine)
        plain = pick(own, drafter="none")
        drafting = [row for row in own if row["drafter"] != "none"]
        for label, of in ((engine, plain), (f"{engine}, drafts", drafting)):
            fastest = [best(pick(of, batch=batch)) for batch in batches]
            points = [
                (row["batch"], median(row["rounds_user_tokens_per_s"]), speed(row))
                for row in fastest
                if row is not None
            ]
            if points:
                lines[label] = points
    return lines


def draw_one(rows: Sequence[Row], path: Path) -> None:
    """Write one panel, with the lines' names at their ends: `FRONT`, or the last panel if that was not measured. The
    background is transparent. Needs matplotlib."""
    from matplotlib.figure import Figure

    panels = panels_of(rows)
    panel = FRONT if FRONT in panels else panels[-1]
    figure = Figure(figsize=(8.3, 5.2))
    axes = figure.subplots()
    lines = series(pick(rows, **dict(zip(PANEL, panel, strict=True))))
    draw_lines(axes, lines, size=15)
    axes.margins(x=0.04, y=0.1)
    axes.set_xlim(right=axes.get_xlim()[1] * 2)  # room for the names
    axes.set_title(title(panel), color=INK, fontsize=14, loc="left")
    axes.set_xlabel("tokens/s that one user sees → faster answers", color=INK, fontsize=13)
    axes.set_ylabel("tokens/s of all users → more users", color=INK, fontsize=13)
    axes.tick_params(which="both", colors=INK, labelsize=12)
    axes.spines[["left", "bottom"]].set_color(INK)
    note = "Numbers: requests at a time. Dashed: without drafts. Best is top right."
    figure.text(0.99, 0.015, note, color=INK, fontsize=11, ha="right")
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    name_lines(axes, lines)
    save(figure, path, transparent=True)


def draw_all(rows: Sequence[Row], path: Path) -> None:
    """Write a row of panels for each checkpoint, with a panel for each dtype and form. Needs matplotlib."""
    from matplotlib.figure import Figure

    panels = panels_of(rows)
    checkpoints = list(dict.fromkeys(panel[0] for panel in panels))
    widest = max(sum(panel[0] == name for panel in panels) for name in checkpoints)
    figure = Figure(figsize=(3.6 * widest, 3.6 * len(checkpoints) + 0.8))
    grid = figure.subplots(len(checkpoints), widest, squeeze=False, sharex="row", sharey="row")
    for row, name in zip(grid, checkpoints, strict=True):
        here = [panel for panel in panels if panel[0] == name]
        for axes in row[len(here) :]:
            axes.set_visible(False)
        for axes, panel in zip(row, here, strict=False):
            lines = series(pick(rows, **dict(zip(PANEL, panel, strict=True))))
            draw_lines(axes, lines, size=8)
            axes.set_title(title(panel), fontsize=8)
    for axes in grid[:, 0]:
        axes.set_ylabel("tokens/s, all users")
    for axes in grid[-1]:
        axes.set_xlabel("tokens/s, one user")
    named = {}
    for axes in grid.flat:
        named.update(dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True)))
    figure.suptitle("Numbers: requests at a time. Dashed: without drafts.", fontsize=10)
    figure.legend(
        named.values(), named.keys(), loc="lower center", ncols=4, handlelength=4, frameon=False, fontsize=8
    )
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    save(figure, path)


def panels_of(rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Return the panels that the rows belong to, in their order."""
    return list(dict.fromkeys(tuple(row[key] for key in PANEL) for row in rows))


def title(panel: Sequence[Any]) -> str:
    """Return the title of a panel."""
    return f"{panel[0]}, {panel[1]}, {'under JSON schemas' if panel[2] else 'free'}"


def colour(label: str) -> str:
    """Return the colour of a line's engine."""
    return COLOURS[ENGINES.index(label.partition(", ")[0])]


def draw_lines(axes: Axes, lines: dict[str, list[Point]], *, size: int) -> None:
    """Draw the lines on logarithmic scales, with the batch in each point. `size` is that of a point."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    for label, points in lines.items():
        batches, users, totals = zip(*points, strict=True)
        style = "-" if ", drafts" in label else "--"
        axes.plot(
            users,
            totals,
            label=label,
            color=colour(label),
            linestyle=style,
            linewidth=size / 7,
            marker="o",
            markersize=size,
        )
        for batch, *at in zip(batches, users, totals, strict=True):
            place = {"ha": "center", "va": "center_baseline", "zorder": 3}
            axes.annotate(str(batch), at, color="white", fontsize=0.7 * size, weight="bold", **place)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for ticks in (axes.xaxis, axes.yaxis):
        ticks.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ticks.set_major_formatter(FormatStrFormatter("%g"))
        ticks.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def name_lines(axes: Axes, lines: dict[str, list[Point]]) -> None:
    """Write each line's name to the right of its first point. Names of close points move down."""
    points_per_pixel = 72 / axes.figure.dpi
    last = float("inf")
    for label, points in sorted(lines.items(), key=lambda line: -line[1][0][2]):
        at = points[0][1:]
        height = axes.transData.transform(at)[1] * points_per_pixel
        lowered = min(height, last - LABEL_POINTS)
        axes.annotate(
            label,
            at,
            xytext=(12, lowered - height),
            textcoords="offset points",
            va="center",
            color=colour(label),
            fontsize=13,
            weight="bold",
        )
        last = lowered


def save(figure: Figure, path: Path, **options: Any) -> None:
    """Write the figure. Equal figures give equal files."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "weft"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None, **options)
