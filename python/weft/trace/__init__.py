"""Timelines: what ran when, on which stream, as Chrome/Perfetto JSON and as a picture."""

from __future__ import annotations

from weft.trace.chrome import write_chrome
from weft.trace.record import Slice, record, recording

__all__ = ["Slice", "record", "recording", "write_chrome"]
