"""Records per-stream timelines of a run, and exports them as Chrome/Perfetto JSON or as plots."""

from __future__ import annotations

from weft.trace.record import record, record_on, recording
from weft.trace.timeline import Slice, track_names, write_chrome

__all__ = ["Slice", "record", "record_on", "recording", "track_names", "write_chrome"]
