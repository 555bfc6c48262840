"""What torch's profiler wrote of a GPU, as slices."""

from __future__ import annotations

from typing import Any

from weft.trace.slice import Slice

KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}


def slices_of(profile: dict[str, Any], with_grids: bool = False) -> list[Slice]:
    """The device's work in a profile in Chrome's format, in the order of its beginning; times begin at the first. With
    `with_grids` a kernel's label ends in its grid, such as 448x1x1, by which products of different shapes differ.

    The profiler sees no host nodes of graphs: while they run, the streams that wait for them are idle.
    """
    events = [e for e in profile["traceEvents"] if e.get("ph") == "X" and e.get("cat") in KINDS]
    start = min((e["ts"] for e in events), default=0.0)
    slices = []
    for e in sorted(events, key=lambda e: float(e["ts"])):
        begin, stream = float(e["ts"]) - start, int(e["args"]["stream"])
        label = shortened(e["name"])
        if with_grids and "grid" in e["args"]:
            label += " " + "x".join(map(str, e["args"]["grid"]))
        slices.append(Slice(label, KINDS[e["cat"]], stream, 0, begin, begin + float(e["dur"])))
    return slices


def shortened(kernel: str) -> str:
    """A kernel's name without what its template and its arguments are."""
    return kernel.removeprefix("void ").split("<")[0].split("(")[0] or kernel
