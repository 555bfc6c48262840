"""How far back a model's layers see, and so which pages of a text are read no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.ops.attention import Window


@dataclass(frozen=True)
class Sight:
    """What some layer still sees of a text: its first `sinks` positions, and from each position the last `reach`, it
    among them."""

    sinks: int
    reach: int

    @classmethod
    def of(cls, windows: Sequence[Window]) -> Sight | None:
        """Of layers with these windows; None where one of them sees all."""
        if not all(window.size for window in windows):
            return None
        return cls(max(window.sinks for window in windows), max(window.reach for window in windows))

    def hidden(self, position: int, page_size: int) -> range:
        """The places of pages that queries at `position` and after it don't see."""
        first, stop = -(-self.sinks // page_size), max(position + 1 - self.reach, 0) // page_size
        return range(first, max(first, stop))

    def hides(self, place: int, page_size: int) -> int:
        """The first position whose queries don't see the page at `place`."""
        return (place + 1) * page_size + self.reach - 1
