"""Finds the pages of a text that no layer attends to any more, in models with sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.ops.attention import Window


@dataclass(frozen=True)
class AttentionSpan:
    """The positions to which at least one layer attends: the first `sinks` of the text, and the last `reach` up to and
    including the query's own position."""

    sinks: int
    reach: int

    @classmethod
    def of(cls, windows: Sequence[Window]) -> AttentionSpan | None:
        """The span over layers with these windows; None if a layer attends to the whole text, or if none attends."""
        if not windows or not all(window.size for window in windows):
            return None
        return cls(max(window.sinks for window in windows), max(window.reach for window in windows))

    def hidden(self, position: int, page_size: int) -> range:
        """The indices of the pages to which no query at `position` or later attends."""
        first, stop = -(-self.sinks // page_size), max(position + 1 - self.reach, 0) // page_size
        return range(first, max(first, stop))

    def hides(self, index: int, page_size: int) -> int:
        """The first position whose query no longer attends to page `index`."""
        return (index + 1) * page_size + self.reach - 1
