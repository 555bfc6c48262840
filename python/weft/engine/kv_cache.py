"""Pages of keys and values: who holds which.

Page 0 belongs to nobody: padding rows and positions beyond a request's pages point at it.
"""

from __future__ import annotations


class PageAllocator:
    """Hands out page numbers 1..num_pages-1, each to one holder at a time."""

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages - 1, 0, -1))
        self.num_pages = num_pages

    def allocate(self, count: int) -> list[int] | None:
        """`count` pages, or None if there are not that many; nothing is taken then."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def free(self, pages: list[int]) -> None:
        """Take pages back, the last handed out first."""
        self._free.extend(reversed(pages))
