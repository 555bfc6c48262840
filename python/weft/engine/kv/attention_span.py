"""Which pages of a text no layer attends to any more, in models with sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.ops.attention import Window


@dataclass(frozen=True)
class AttentionSpan:
    """The positions that any layer attends to: the first `sinks`, and the last `reach` up to the query."""

    sinks: int
    reach: int

    @classmethod
    def of(cls, windows: Sequence[Window]) -> AttentionSpan | None:
        """The span of layers with these windows; None if one of them attends to the whole text."""
        if not all(window.size for window in windows):
            return None
        return cls(max(window.sinks for window in windows), max(window.reach for window in windows))

    def hidden(self, position: int, page_size: int) -> range:
        """The indices of pages that no query at `position` or later attends to."""
        first, stop = -(-self.sinks // page_size), max(position + 1 - self.reach, 0) // page_size
        return range(first, max(first, stop))

    def hides(self, index: int, page_size: int) -> int:
        """The first position whose query no longer attends to page `index`."""
        return (index + 1) * page_size + self.reach - 1
