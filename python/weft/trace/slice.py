"""What a timeline is made of."""

from __future__ import annotations

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
