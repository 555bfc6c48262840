"""The pool of pages that no sequence holds: free pages, and cached pages in two tiers, on the device and on the host.

A page evicted from the device is copied to the host if its priority is high enough. A prefix can match it there, and it
is copied back before a sequence holds it. These copies are the `moves`. The device makes them in order, on the model's
stream and before all other work of the step. So a page can be reallocated immediately, and the host never waits:
earlier launches write the content to copy, and later launches write the new content.

The tree (`prefix_tree.py`) has two invariants. All descendants of a page on the host are on the host. When a page
leaves the cache, its descendants leave too, because a prefix could not match them without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from weft.core.retention import DEFAULT_PRIORITY
from weft.engine.kv.events import DEVICE_LEVEL, HOST_LEVEL, Change, KvEventLog, PagesCreated, PageUpdated
from weft.engine.kv.prefix_tree import CachedPage
from weft.engine.kv.snapshots import Snapshots
from weft.engine.kv.windowed import WindowedPages

_stamps = itertools.count(1)


class MoveKind(Enum):
    """The direction of a page copy."""

    COPY = "from the device to the device"
    COPY_WINDOWED = "from the device to the device, in the layers with windows"
    OFFLOAD = "from the device to the host"
    ONBOARD = "from the host to the device"


class Move(NamedTuple):
    """A copy of page `source` to page `target`. Device pages, windowed pages and host pages are numbered separately."""

    kind: MoveKind
    source: int
    target: int


class EvictionOrder:
    """The eviction order of the cached pages of one tier: the device or, with `on_host`, the host. `clock` returns the
    time in seconds.

    The leaf with the lowest priority is evicted first; among equals, the one released first. A page with children in
    the same tier is not a leaf, and is not evicted whatever its priority. So a text is evicted from its end.

    Both heaps may have stale entries of pages that have been held or moved since. A stale entry is dropped when it
    reaches the top. All stale entries are dropped when a heap has twice as many entries as there are pages.
    """

    def __init__(self, num_pages: int, clock: Callable[[], float], on_host: bool = False) -> None:
        self._max_entries = 2 * num_pages
        self._clock = clock
        self._on_host = on_host
        self._leaves: list[tuple[int, int, CachedPage]] = []  # (priority, stamp, page)
        self._expiring: list[tuple[float, int, CachedPage]] = []  # (time, stamp, page)

    def add(self, page: CachedPage) -> None:
        """Add a page that its last holder has just released. The duration of the page's priority starts now."""
        page.released = next(_stamps)
        if page.duration_s is not None:
            page.expires = self._clock() + page.duration_s
        self.move_in(page)

    def move_in(self, page: CachedPage) -> None:
        """Add a page that moves here from the other tier. It keeps its stamp and its expiry time."""
        if page.expires is not None:
            heappush(self._expiring, (page.expires, page.released, page))
            if len(self._expiring) > self._max_entries:
                self._expiring = [entry for entry in self._expiring if self._is_here(entry)]
                heapify(self._expiring)
        self.offer(page)

    def remove(self, page: CachedPage) -> None:
        """Remove a page that is held again or pinned. Its heap entries become stale. A priority that has expired
        returns to the default."""
        if page.expires is not None and page.expires <= self._clock():
            page.priority, page.duration_s = DEFAULT_PRIORITY, None
        page.released, page.expires = 0, None

    def offer(self, page: CachedPage) -> None:
        """Make a cached page evictable if it is a leaf. The pool calls this again when a page becomes a leaf."""
        if not page.is_leaf:
            return
        heappush(self._leaves, (page.priority, page.released, page))
        if len(self._leaves) > self._max_entries:
            self._leaves = [entry for entry in self._leaves if self._is_current(entry)]
            heapify(self._leaves)

    def pop(self) -> CachedPage | None:
        """Remove and return the next page to evict; None if no page is evictable."""
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
        """Whether the page has stayed cached in this tier since the entry was made."""
        return entry[2].released == entry[1] and entry[2].is_on_host == self._on_host

    def _is_current(self, entry: tuple[int, int, CachedPage]) -> bool:
        """Whether the entry is not stale and its priority has not changed. The page is then still a leaf, because only
        a sequence that holds a page adds children to it."""
        return self._is_here(entry) and entry[2].priority == entry[0]


class PagePool:
    """The pool of device pages 1 to `num_pages` - 1, and of host pages 0 to `num_host_pages` - 1.

    Evicted device pages of priority `offload_min_priority` or more move to the host. `log` records cache events, and
    `clock` returns the time in seconds. When a page leaves the tree, its snapshots leave `snapshots`, and its windowed
    page leaves `windowed`; on the host it keeps its snapshots.

    root: the root of the prefix tree.
    free, host_free: the numbers of pages without content, in each tier.
    num_cached, num_on_host: the number of cached pages that no sequence holds, in each tier.
    """

    def __init__(
        self,
        num_pages: int,
        num_host_pages: int,
        offload_min_priority: int,
        log: KvEventLog | None,
        clock: Callable[[], float],
        snapshots: Snapshots,
        windowed: WindowedPages | None,
    ) -> None:
        self.root = CachedPage(0, (), None)
        self.root.holders = 1  # so that the root is never evicted
        self.free = list(range(num_pages - 1, 0, -1))
        self.host_free = list(range(num_host_pages - 1, -1, -1))
        self.moves: list[Move] = []
        self.num_cached = self.num_on_host = 0
        self.num_allocated = self.num_new = self.num_offloaded = self.num_onboarded = 0
        self._was_taken = bytearray(num_pages)
        self._order = EvictionOrder(num_pages, clock)
        self._host_order = EvictionOrder(num_host_pages, clock, on_host=True)
        self._has_host, self._offload_min_priority = num_host_pages > 0, offload_min_priority
        self._log, self._snapshots, self._windowed = log, snapshots, windowed
        if log is not None:
            log.note(PagesCreated((num_pages - 1, num_host_pages)))
            log.flush()

    @property
    def num_available(self) -> int:
        """The number of device pages that can be allocated: free and cached pages."""
        return len(self.free) + self.num_cached

    # -- holding cached pages

    def hold(self, page: CachedPage) -> None:
        """Add a holder to a page on the device."""
        if page.holders == 0:
            self.num_cached -= 1
            self._order.remove(page)
        page.holders += 1

    def release(self, page: CachedPage) -> None:
        """Remove a holder from a page on the device.

        When the last holder leaves, a duplicate replaces the page if there is one. Otherwise the page becomes cached,
        or free if it is no longer in the tree.
        """
        page.holders -= 1
        if page.holders == 0 and page.duplicates:
            self.replace(page, page.duplicates.pop())
            page.holders = 1
        elif page.holders == 0 and page.parent is None:
            self.free.append(page.number)
        elif page.holders == 0:
            self.num_cached += 1
            self._order.add(page)

    def replace(self, page: CachedPage, number: int) -> None:
        """Replace a page in the tree by device page `number`, which has the same content. The old page becomes free."""
        self.free.append(page.number)
        page.number = number

    def pin(self, page: CachedPage) -> None:
        """Protect a host page from eviction. Taking device pages may offload others, which may evict host pages."""
        self._host_order.remove(page)

    def unpin(self, page: CachedPage) -> None:
        """Make a pinned page evictable again, as if it had just been released."""
        self._host_order.add(page)

    def onboard(self, page: CachedPage, number: int, is_copied: bool = True) -> None:
        """Move a pinned host page to device page `number`, where one sequence holds it. Its parent must be on the
        device. With `is_copied` False no copy is made: the sequence has written the same content there itself."""
        if is_copied:
            self.moves.append(Move(MoveKind.ONBOARD, page.number, number))
            self.num_onboarded += 1
        self.host_free.append(page.number)
        self.num_on_host -= 1
        page.number, page.is_on_host = number, False
        assert page.parent is not None
        page.parent.num_on_device += 1
        page.holders = 1
        self._note_level(page, HOST_LEVEL, DEVICE_LEVEL)

    def copy_in(self, page: CachedPage, number: int) -> None:
        """Add a move that copies a pinned host page to device page `number`. In the tree, the page stays on the
        host."""
        self.moves.append(Move(MoveKind.ONBOARD, page.number, number))
        self.num_onboarded += 1

    # -- taking pages

    def take(self, count: int) -> tuple[list[int], list[bool]]:
        """Take `count` device pages, evicting cached pages as needed. The caller must check that enough are available.
        Returns the pages, and for each a flag whether it was never allocated before."""
        while len(self.free) < count:
            page = self._order.pop()
            assert page is not None
            if not (self._has_host and page.priority >= self._offload_min_priority and self._offload(page)):
                self.free.append(self.remove(page))
        self.num_allocated += count
        split = len(self.free) - count
        taken = self.free[split:]
        del self.free[split:]
        taken.reverse()
        are_new = [not self._was_taken[number] for number in taken]
        for number in taken:
            self._was_taken[number] = True
        self.num_new += sum(are_new)
        return taken, are_new

    def remove(self, page: CachedPage) -> int:
        """Remove a cached page and all its descendants, which must be on the host, from the tree. Returns the page's
        number. The page now belongs to the caller."""
        for descendant in reversed(list(page.descendants())):
            self.host_free.append(self._remove_leaf(descendant))
        return self._remove_leaf(page)

    def discard(self, page: CachedPage) -> None:
        """Remove a cached page of either tier and its descendants from the tree, and free them. The page must have no
        children on the device."""
        (self.host_free if page.is_on_host else self.free).append(self.remove(page))

    def discard_all(self) -> None:
        """Remove all pages from the tree. Cached pages become free; held pages stay with their holders."""
        for page in reversed(list(self.root.descendants())):
            if not page.holders:
                self.discard(page)
                continue
            assert page.parent is not None
            page.parent.remove(page)
            page.parent = None
            self._drop_contents(page)
            if self._log is not None:
                self._log.note_removed(page.hash)

    # -- one page

    def _offload(self, page: CachedPage) -> bool:
        """Move a cached page to the host and free its device page. Returns False if the host has no free or evictable
        page."""
        evicted = None if self.host_free else self._host_order.pop()
        if not self.host_free and evicted is None:
            return False
        self._note_level(page, DEVICE_LEVEL, HOST_LEVEL)
        if evicted is not None:
            self.host_free.append(self._remove_leaf(evicted))
        target = self.host_free.pop()
        self.moves.append(Move(MoveKind.OFFLOAD, page.number, target))
        self.free.append(page.number)
        self.num_cached -= 1
        self.num_on_host += 1
        self.num_offloaded += 1
        page.number, page.is_on_host = target, True
        assert page.parent is not None
        page.parent.num_on_device -= 1
        self._host_order.move_in(page)
        self._offer(page.parent)
        return True

    def _remove_leaf(self, page: CachedPage) -> int:
        """Remove a cached page without children from the tree. Returns its number."""
        if page.is_on_host:
            self.num_on_host -= 1
        else:
            self.num_cached -= 1
        page.released, page.expires = 0, None
        parent = page.parent
        assert parent is not None
        parent.remove(page)
        self._drop_contents(page)
        if self._log is not None:
            self._log.note_removed(page.hash)
        self._offer(parent)
        return page.number

    def _drop_contents(self, page: CachedPage) -> None:
        """Release what a page has besides its own number, when it leaves the tree."""
        if page.snapshots:
            self._snapshots.drop(page)
        if self._windowed is not None:
            self._windowed.drop(page)

    def _offer(self, parent: CachedPage) -> None:
        """Make a page that lost a child evictable, unless a sequence holds it."""
        if parent.released:
            (self._host_order if parent.is_on_host else self._order).offer(parent)

    def _note_level(self, page: CachedPage, old: int, new: int) -> None:
        if self._log is not None:
            self._log.note(PageUpdated(page.hash, level=Change(old, new)))
