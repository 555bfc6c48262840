"""Which cached page goes first, of those of one tier that nobody holds.

The leaf of the lowest priority; of these, the one that was given back first. A page with a cached child beside it is
kept, whatever its own priority: what comes after it could not be found without it. So of a text the end goes before the
beginning.

Both heaps hold stale entries, of pages that were taken again or moved since; they are dropped when they come up, or all
at once when there are more of them than pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from weft.core.retention import DEFAULT_PRIORITY
from weft.engine.kv.prefix_tree import CachedPage

_stamps = itertools.count(1)


class EvictionOrder:
    """The order in which unheld pages of the tree are given up: those of the device, or those `on_host`. `clock` gives
    seconds."""

    def __init__(self, num_pages: int, clock: Callable[[], float], on_host: bool = False) -> None:
        self._most_entries = 2 * num_pages
        self._clock = clock
        self._on_host = on_host
        self._leaves: list[tuple[int, int, CachedPage]] = []  # priority, stamp
        self._expiring: list[tuple[float, int, CachedPage]] = []  # when, stamp

    def add(self, page: CachedPage) -> None:
        """The last holder gave the page back. Its duration begins."""
        page.released = next(_stamps)
        if page.duration_s is not None:
            page.expires = self._clock() + page.duration_s
        self.move_in(page)

    def move_in(self, page: CachedPage) -> None:
        """A page that nobody holds comes from another tier. When it was given back, and how long its priority lasts, it
        keeps."""
        if page.expires is not None:
            heappush(self._expiring, (page.expires, page.released, page))
            if len(self._expiring) > self._most_entries:
                self._expiring = [entry for entry in self._expiring if self._is_here(entry)]
                heapify(self._expiring)
        self.offer(page)

    def remove(self, page: CachedPage) -> None:
        """Somebody holds the page again, or it is no longer found."""
        if page.expires is not None and page.expires <= self._clock():
            page.priority, page.duration_s = DEFAULT_PRIORITY, None
        page.released, page.expires = 0, None

    def offer(self, page: CachedPage) -> None:
        """Let an unheld page go in its turn, if it is a leaf; if not, this is called again once it is."""
        if not page.is_leaf:
            return
        heappush(self._leaves, (page.priority, page.released, page))
        if len(self._leaves) > self._most_entries:
            self._leaves = [entry for entry in self._leaves if self._is_current(entry)]
            heapify(self._leaves)

    def pop(self) -> CachedPage | None:
        """The page that goes first, which is no longer in the order; None where there is none."""
        while self._expiring and self._expiring[0][0] <= self._clock():
            entry = heappop(self._expiring)
            page = entry[2]
            if self._is_here(entry):
                page.duration_s = page.expires = None
                if page.priority != DEFAULT_PRIORITY:
                    page.priority = DEFAULT_PRIORITY
                    self.offer(page)
        while self._leaves and not self._is_current(self._leaves[0]):
            heappop(self._leaves)
        return heappop(self._leaves)[2] if self._leaves else None

    def _is_here(self, entry: tuple[float, int, CachedPage]) -> bool:
        """Whether the page is still unheld since, in this tier."""
        return entry[2].released == entry[1] and entry[2].is_on_host == self._on_host

    def _is_current(self, entry: tuple[int, int, CachedPage]) -> bool:
        """Whether the page is still unheld since, in this tier, at that priority. It is then a leaf still: children
        come from holders."""
        return self._is_here(entry) and entry[2].priority == entry[0]
