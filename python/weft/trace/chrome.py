"""Slices as Chrome's trace event format, which Perfetto opens too: one track for each stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.trace.slice import Slice

PROCESS = 1


def track_names(slices: Sequence[Slice]) -> dict[int, str]:
    """A name for each stream: the one with most host nodes is the grammar's, of the others that with most device work
    the model's.
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
    """Write the slices to `path`; open it in Perfetto or chrome://tracing. `names` are the streams' own, by number;
    by default `track_names`.
    """
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
