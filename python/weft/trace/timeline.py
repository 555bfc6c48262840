"""Timelines as lists of slices: reads torch profiles, writes Chrome/Perfetto files, and measures how grammar work
overlaps with the forward pass."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Slice:
    """One executed graph node. `kind` is "kernel", "host", "memcpy" or similar. `stream` and `thread` are numbers.
    Times are in microseconds since the first slice began."""

    label: str
    kind: str
    stream: int
    thread: int
    begin_us: float
    end_us: float


def begins_of(slices: Sequence[Slice], function: str) -> list[Slice]:
    """Return the first slice of each call of `function`. A call may consist of several consecutive slices on its
    stream."""
    firsts, is_inside = [], dict[int, bool]()
    for current in sorted(slices, key=lambda s: s.begin_us):
        is_part = function in current.label
        if is_part and not is_inside.get(current.stream):
            firsts.append(current)
        is_inside[current.stream] = is_part
    return firsts


PROCESS = 1
"""The process id of all events in a Chrome trace."""


def track_names(slices: Sequence[Slice]) -> dict[int, str]:
    """Guess the name of each stream. The stream with the most host nodes is the grammar's. Of the others, the one
    with the most kernel time is the model's.
    """
    streams = sorted({s.stream for s in slices})
    busy = {
        n: sum(s.end_us - s.begin_us for s in slices if s.stream == n and s.kind == "kernel") for n in streams
    }
    hosts = {n: sum(s.kind == "host" for s in slices if s.stream == n) for n in streams}
    names = {n: f"stream {n}" for n in streams}
    if any(hosts.values()):
        grammar = max(streams, key=lambda n: hosts[n])
        names[grammar] = "grammar stream"
        streams.remove(grammar)
    if streams:
        names[max(streams, key=lambda n: busy[n])] = "model stream"
    return names


def write_chrome(slices: Sequence[Slice], path: Path, names: dict[int, str] | None = None) -> None:
    """Write slices to `path` for Perfetto or chrome://tracing, with one track per stream. `names` maps stream numbers
    to names (default: `track_names`)."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": PROCESS, "tid": number, "name": "thread_name", "args": {"name": name}}
        for number, name in (names or track_names(slices)).items()
    ]
    events += [
        {
            "ph": "X",
            "pid": PROCESS,
            "tid": s.stream,
            "name": s.label,
            "cat": s.kind,
            "ts": s.begin_us,
            "dur": s.end_us - s.begin_us,
            "args": {"thread": s.thread},
        }
        for s in slices
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))


KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}


def slices_of(profile: dict[str, Any], with_grids: bool = False) -> list[Slice]:
    """Extract the device work from a torch profile in Chrome's format. The slices are sorted by start time, and the
    first starts at 0.

    With `with_grids` a kernel's label ends in its launch grid, such as 448x1x1. The grid tells matrix products of
    different shapes apart. The profiler does not record the host nodes of graphs, so a stream that waits for a host
    node looks idle."""
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
    """Return a kernel's name without template and function arguments."""
    return kernel.removeprefix("void ").split("<")[0].split("(")[0] or kernel


@dataclass(frozen=True)
class Overlap:
    """The busy time of the grammar stream, and the part of it during which another stream was busy too. Both are in
    microseconds."""

    grammar_us: float
    beside_us: float

    @property
    def share(self) -> float:
        """The fraction of the grammar's busy time that overlaps, 0 to 1."""
        return self.beside_us / self.grammar_us if self.grammar_us else 0.0


def overlap(slices: Sequence[Slice]) -> Overlap:
    """Compute the overlap in a recording. It is zero if no stream has host nodes."""
    names = track_names(slices)
    grammar = busy(s for s in slices if names[s.stream] == "grammar stream")
    others = busy(s for s in slices if names[s.stream] != "grammar stream")
    beside = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in grammar for b in others)
    return Overlap(sum(end - begin for begin, end in grammar), beside)


def busy(slices: Iterable[Slice]) -> list[tuple[float, float]]:
    """Return the union of the slices' time intervals, as disjoint intervals in order."""
    intervals: list[tuple[float, float]] = []
    for begin, end in sorted((s.begin_us, s.end_us) for s in slices):
        if intervals and begin <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], end))
        else:
            intervals.append((begin, end))
    return intervals
