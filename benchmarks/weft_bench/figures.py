"""Draws the figures of the benchmarks as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.core.extras import install_hint
from weft.errors import InterfaceError

UNGUIDED = " unguided"
Points = Sequence[tuple[float, float]]

COLOURS = ("#33658a", "#f26419", "#758e4f", "#d1495b", "#f6ae2d", "#7b4fa3", "#4cc3d9", "#444444")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def lines(panels: Mapping[str, Mapping[str, Points]], path: Path, *, title: str, x: str, y: str) -> None:
    """Draw a panel for each entry of `panels`, with a line for each of the panel's entries, and save the figure to
    `path` (svg or png). Needs matplotlib.

    A line whose name is another's plus " unguided" has the other's colour and is dashed. Raises `InterfaceError` for
    more names than `COLOURS`, because two lines would look the same.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InterfaceError(f"the figure needs matplotlib: {install_hint('plot')}") from error
    figure = Figure(figsize=(5.2 * len(panels), 4.6))
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (name, drawn) in zip(axes, panels.items(), strict=True):
        for label, points in drawn.items():
            colour, marker, style = look(label, list(drawn))
            axis.plot(
                *zip(*points, strict=True),
                label=label,
                color=colour,
                linestyle=style,
                marker=marker,
                markersize=4,
            )
        axis.set_title(name, fontsize=10)
        axis.set_xlabel(x)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(y)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.suptitle(title, fontsize=11)
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.05 * -(-len(labels) // 4), 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "weft"}):  # the same figure must give the same file
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def look(label: str, labels: Sequence[str]) -> tuple[str, str, str]:
    """Return the colour, marker and line style of a line among `labels`."""
    bases = list(dict.fromkeys(other.removesuffix(UNGUIDED) for other in labels))
    if len(bases) > len(COLOURS):
        raise InterfaceError(f"a figure tells {len(COLOURS)} kinds apart; these are {len(bases)}")
    base = label.removesuffix(UNGUIDED)
    number = bases.index(base)
    return COLOURS[number], MARKERS[number], "--" if base != label else "-"
