"""Timelines of a run: slices, Chrome/Perfetto files, torch's profiles, and the overlap of grammar and forward."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Slice:
    """One node that ran. `kind` is "kernel", "host", "memcpy", ...; `stream` and `thread` are numbers; times are in
    microseconds since the recording began."""

    label: str
    kind: str
    stream: int
    thread: int
    begin_us: float
    end_us: float


def begins_of(slices: Sequence[Slice], function: str) -> list[Slice]:
    """The first slice of each call of a launched function. A graph runs such a function as consecutive operations."""
    firsts, is_inside = [], dict[int, bool]()
    for current in sorted(slices, key=lambda s: s.begin_us):
        is_part = function in current.label
        if is_part and not is_inside.get(current.stream):
            firsts.append(current)
        is_inside[current.stream] = is_part
    return firsts


PROCESS = 1


def track_names(slices: Sequence[Slice]) -> dict[int, str]:
    """Names of the streams: the one with the most host nodes is the grammar's; of the others, the one with the most
    device work is the model's.
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
    """Write slices to `path` for Perfetto or chrome://tracing, one track for each stream. `names` maps stream numbers
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
    """The device work in a torch profile (Chrome's format), ordered by begin; the first slice begins at 0.

    With `with_grids` a kernel's label ends in its grid, such as 448x1x1, which tells products of different shapes
    apart. The profiler does not see host nodes of graphs: streams that wait for them look idle."""
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
    """A kernel's name without template and function arguments."""
    return kernel.removeprefix("void ").split("<")[0].split("(")[0] or kernel


@dataclass(frozen=True)
class Overlap:
    """Busy time of the grammar stream, and the part of it during which another stream worked, in microseconds."""

    grammar_us: float
    beside_us: float

    @property
    def share(self) -> float:
        """The overlapped part of the grammar's work, 0 to 1."""
        return self.beside_us / self.grammar_us if self.grammar_us else 0.0


def overlap(slices: Sequence[Slice]) -> Overlap:
    """The overlap in a recording; zeros if no stream has host nodes."""
    names = track_names(slices)
    grammar = busy(s for s in slices if names[s.stream] == "grammar stream")
    others = busy(s for s in slices if names[s.stream] != "grammar stream")
    beside = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in grammar for b in others)
    return Overlap(sum(end - begin for begin, end in grammar), beside)


def busy(slices: Iterable[Slice]) -> list[tuple[float, float]]:
    """The disjoint intervals in which any slice ran, in order."""
    intervals: list[tuple[float, float]] = []
    for begin, end in sorted((s.begin_us, s.end_us) for s in slices):
        if intervals and begin <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], end))
        else:
            intervals.append((begin, end))
    return intervals
