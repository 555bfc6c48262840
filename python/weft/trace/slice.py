"""What a timeline is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    """One node that ran: its label, kind ("kernel", "host", "memcpy", ...), stream and thread numbers, and its time in
    microseconds since the recording began."""

    label: str
    kind: str
    stream: int
    thread: int
    begin_us: float
    end_us: float


def begins_of(slices: Sequence[Slice], function: str) -> list[Slice]:
    """The first slice of each run of a launched function, which a graph runs operation by operation."""
    found, runs = [], dict[int, bool]()
    for one in sorted(slices, key=lambda s: s.begin_us):
        is_part = function in one.label
        if is_part and not runs.get(one.stream):
            found.append(one)
        runs[one.stream] = is_part
    return found
