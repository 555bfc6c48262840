"""Timelines of a run by stream, as Chrome/Perfetto JSON and as pictures."""

from __future__ import annotations

from weft.trace.record import record, record_on, recording
from weft.trace.timeline import Slice, track_names, write_chrome

__all__ = ["Slice", "record", "record_on", "recording", "track_names", "write_chrome"]
