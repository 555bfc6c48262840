"""Plots timelines with one row per stream, to show how grammar work and forward passes overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.core.extras import install_hint
from weft.errors import InterfaceError
from weft.trace.timeline import Slice, track_names

COLOURS = {
    "target_forward": "#33658a",
    "draft_forward": "#86bbd8",
    "sample_and_verify": "#4f7a28",
    "pick_draft": "#b5d99c",
    "fetch": "#7b4fa3",
    "extend": "#f6ae2d",
    "commit": "#d1495b",
}
OTHER = "#b0b0b0"
HAIR = 600
"""Slices are drawn at least 1/HAIR of the time axis wide, so that short ones stay visible."""


def colour(label: str) -> str:
    """Return the colour of the first entry of `COLOURS` whose name is in `label`."""
    return next((c for word, c in COLOURS.items() if word in label), OTHER)


def plot(panels: Mapping[str, Sequence[Slice]], path: Path, title: str) -> None:
    """Plot one panel per recording, with a row per stream, and save to `path` (svg or png).

    Each panel's time axis starts at 0. The key in `panels` is the panel's title. Raises `InterfaceError` without
    matplotlib.
    """
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise InterfaceError(f"the picture needs matplotlib: {install_hint('plot')}") from error
    figure = Figure(figsize=(12, 1.2 + 1.9 * len(panels)))
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, (name, slices) in zip(grid, panels.items(), strict=True):
        draw(axes, slices)
        axes.set_title(name, fontsize=10)
    grid[-1].set_xlabel("microseconds")
    figure.suptitle(title, fontsize=11)
    labels = [s.label for slices in panels.values() for s in slices]
    seen = [word for word in COLOURS if any(colour(label) == COLOURS[word] for label in labels)]
    handles = [Patch(color=COLOURS[word], label=word.replace("_", " ")) for word in seen]
    if any(colour(label) == OTHER for label in labels):
        handles.append(Patch(color=OTHER, label="copies, masks, bookkeeping"))
    figure.legend(handles=handles, loc="lower center", ncols=8, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.25 / figure.get_figheight(), 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.fonttype": "none"}):  # keep text as text, not as paths
        figure.savefig(path)


def draw(axes: Any, slices: Sequence[Slice]) -> None:
    """Plot one recording, shifted to start at 0."""
    names = track_names(slices)
    order = sorted(names, key=lambda n: names[n] != "model stream")
    begin = min((s.begin_us for s in slices), default=0.0)
    length = max((s.end_us for s in slices), default=1.0) - begin
    for row, stream in enumerate(order):
        mine = [s for s in slices if s.stream == stream]
        axes.broken_barh(
            [(s.begin_us - begin, max(s.end_us - s.begin_us, length / HAIR)) for s in mine],
            (row - 0.38, 0.76),
            facecolors=[colour(s.label) for s in mine],
            linewidth=0,
        )
    axes.set_xlim(0, length)
    axes.set_yticks(range(len(order)), [names[n] for n in order])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
