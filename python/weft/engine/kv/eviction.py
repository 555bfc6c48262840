"""Which cached page goes first, of those that nobody holds.

The leaf of the lowest priority; of these, the one that was given back first. A page with a cached child is kept,
whatever its own priority: what comes after it could not be found without it. So of a text the end goes before the
beginning.

Both heaps hold stale entries, of pages that were taken again since; they are dropped when they come up, or all at once
when there are more of them than pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from weft.engine.kv.prefix_tree import CachedPage
from weft.engine.kv.retention import DEFAULT_PRIORITY


class EvictionOrder:
    """The order in which unheld pages of the tree are given up. `clock` gives seconds."""

    def __init__(self, num_pages: int, clock: Callable[[], float]) -> None:
        self._most_entries = 2 * num_pages
        self._clock = clock
        self._stamps = itertools.count(1)
        self._leaves: list[tuple[int, int, CachedPage]] = []  # priority, stamp
        self._expiring: list[tuple[float, int, CachedPage]] = []  # when, stamp

    def add(self, page: CachedPage) -> None:
        """The last holder gave the page back. Its duration begins."""
        page.released = next(self._stamps)
        if page.duration_s is not None:
            page.expires = self._clock() + page.duration_s
            heappush(self._expiring, (page.expires, page.released, page))
            if len(self._expiring) > self._most_entries:
                self._expiring = [entry for entry in self._expiring if entry[2].released == entry[1]]
                heapify(self._expiring)
        self.offer(page)

    def remove(self, page: CachedPage) -> None:
        """Somebody holds the page again, or it is no longer found."""
        if page.expires is not None and page.expires <= self._clock():
            page.priority, page.duration_s = DEFAULT_PRIORITY, None
        page.released, page.expires = 0, None

    def offer(self, page: CachedPage) -> None:
        """Let an unheld page go in its turn, if it is a leaf; if not, this is called again once it is."""
        if page.children:
            return
        heappush(self._leaves, (page.priority, page.released, page))
        if len(self._leaves) > self._most_entries:
            self._leaves = [entry for entry in self._leaves if is_current(entry)]
            heapify(self._leaves)

    def pop(self) -> CachedPage:
        """Take out the page that goes first; there must be one."""
        while self._expiring and self._expiring[0][0] <= self._clock():
            _, stamp, page = heappop(self._expiring)
            if page.released == stamp:
                page.duration_s = page.expires = None
                if page.priority != DEFAULT_PRIORITY:
                    page.priority = DEFAULT_PRIORITY
                    self.offer(page)
        while not is_current(self._leaves[0]):
            heappop(self._leaves)
        page = heappop(self._leaves)[2]
        page.released, page.expires = 0, None
        return page


def is_current(entry: tuple[int, int, CachedPage]) -> bool:
    """Whether the page is still unheld since, at that priority. It is then a leaf still: children come from holders."""
    priority, stamp, page = entry
    return page.released == stamp and page.priority == priority
