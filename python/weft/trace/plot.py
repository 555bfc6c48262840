"""A picture of a timeline: grammar beside forward."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.errors import InterfaceError
from weft.trace.chrome import track_names
from weft.trace.slice import Slice

COLOURS = {
    "target_forward": "#33658a",
    "draft_forward": "#86bbd8",
    "sample_and_verify": "#758e4f",
    "pick_draft": "#a3b18a",
    "fetch": "#f26419",
    "extend": "#f6ae2d",
    "commit": "#d1495b",
}
OTHER = "#c9c9c9"


def colour(label: str) -> str:
    """The colour of the first known word in a label."""
    return next((c for word, c in COLOURS.items() if word in label), OTHER)


def plot(slices: Sequence[Slice], path: Path, title: str) -> None:
    """Draw the slices, a row for each stream, and save them to `path` (svg or png). Needs `weft[plot]`."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise InterfaceError(
            'the picture needs matplotlib; install it with pip install "weft[plot]"'
        ) from error
    names = track_names(slices)
    order = sorted(names, key=lambda n: names[n] != "model stream")
    figure = Figure(figsize=(12, 1.3 + 0.8 * len(order)))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row, stream in enumerate(order):
        mine = [s for s in slices if s.stream == stream]
        axes.broken_barh(
            [(s.begin_us, max(s.end_us - s.begin_us, 0.2)) for s in mine],
            (row - 0.38, 0.76),
            facecolors=[colour(s.label) for s in mine],
            edgecolor="white",
            linewidth=0.3,
        )
    axes.set_yticks(range(len(order)), [names[n] for n in order])
    axes.invert_yaxis()
    axes.set_xlabel("microseconds")
    axes.set_title(title)
    seen = [word for word in COLOURS if any(word in s.label for s in slices)]
    handles = [Patch(color=COLOURS[word], label=word.replace("_", " ")) for word in seen]
    handles.append(Patch(color=OTHER, label="copies, mask, bookkeeping"))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
