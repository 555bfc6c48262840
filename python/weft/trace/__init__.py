"""Timelines: what ran when, on which stream, as Chrome/Perfetto JSON and as a picture."""

from __future__ import annotations

from weft.trace.chrome import track_names, write_chrome
from weft.trace.record import record, record_on, recording
from weft.trace.slice import Slice

__all__ = ["Slice", "record", "record_on", "recording", "track_names", "write_chrome"]
