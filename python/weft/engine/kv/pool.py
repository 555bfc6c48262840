"""Pages that nobody holds: free ones, and cached ones in two tiers, of the device and of the host.

A page that must go from the device is copied to the host, if its priority is worth it, and is found there as before;
what is found on the host is copied back before it is held. Copies are `moves`, which the device makes in their order:
so a page may be given to another at once, as long as the moves are launched before what the other writes.

Of what is cached after a page on the host, all is on the host. What goes for good takes with it what is cached after
it: that could not be found any more.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from weft.core.retention import DEFAULT_PRIORITY
from weft.engine.kv.events import DEVICE_LEVEL, HOST_LEVEL, Change, KvEventLog, PagesCreated, PageUpdated
from weft.engine.kv.prefix_tree import CachedPage

OFFLOAD_MIN_PRIORITY = 30


@dataclass(frozen=True)
class Keeping:
    """How cached pages are kept: of those that must go from the device, those of `offload_min_priority` or more in
    `num_host_pages` pages of the host. `log` hears what becomes of them. `clock` gives seconds."""

    num_host_pages: int = 0
    offload_min_priority: int = OFFLOAD_MIN_PRIORITY
    log: KvEventLog | None = None
    clock: Callable[[], float] = time.monotonic


class PagePool:
    """Pages 1 to `num_pages` - 1 of the device, and those of the host, from 0. `free` are those of the device without
    content, `num_cached` those with; `num_on_host` have content there."""

    def __init__(self, num_pages: int, keeping: Keeping) -> None:
        self.root = CachedPage(0, (), None)
        self.root.holders = 1  # nobody's page, never given up
        self.free = list(range(num_pages - 1, 0, -1))
        self.host_free = list(range(keeping.num_host_pages - 1, -1, -1))
        self.moves: list[Move] = []
        self.num_cached = self.num_on_host = 0
        self.num_allocated = self.num_new = self.num_offloaded = self.num_onboarded = 0
        self._is_used = bytearray(num_pages)
        self._order = EvictionOrder(num_pages, keeping.clock)
        self._host_order = EvictionOrder(keeping.num_host_pages, keeping.clock, on_host=True)
        self._has_host, self._least = keeping.num_host_pages > 0, keeping.offload_min_priority
        self._log = keeping.log
        if self._log is not None:
            self._log.note(PagesCreated((num_pages - 1, keeping.num_host_pages)))
            self._log.flush()

    @property
    def num_available(self) -> int:
        """How many pages of the device can be handed out: free ones and those that are only cached."""
        return len(self.free) + self.num_cached

    # -- holding what is cached

    def hold(self, page: CachedPage) -> None:
        """One more holder of a page of the device."""
        if page.holders == 0:
            self.num_cached -= 1
            self._order.remove(page)
        page.holders += 1

    def release(self, page: CachedPage) -> None:
        """One holder less. Who has a double of the page reads that from now on, if it was the last one. A page that was
        taken out of the tree while it was held is free then."""
        page.holders -= 1
        if page.holders == 0 and page.doubles:
            self.replace(page, page.doubles.pop())
            page.holders = 1
        elif page.holders == 0 and page.parent is None:
            self.free.append(page.number)
        elif page.holders == 0:
            self.num_cached += 1
            self._order.add(page)

    def replace(self, page: CachedPage, number: int) -> None:
        """Another page of the device, of the same content, is found from now on."""
        self.free.append(page.number)
        page.number = number

    def pin(self, page: CachedPage) -> None:
        """Let a page of the host not go while pages of the device are taken."""
        self._host_order.remove(page)

    def unpin(self, page: CachedPage) -> None:
        """A pinned page stays on the host, as one that was just used."""
        self._host_order.add(page)

    def onboard(self, page: CachedPage, number: int, is_copied: bool = True) -> None:
        """A pinned page is page `number` of the device from now on, which is somebody's; its parent is on the device.
        It `is_copied` from the host, unless what it holds was written there anew."""
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
        """Copy a pinned page to page `number` of the device, and let it stay where it is."""
        self.moves.append(Move(MoveKind.ONBOARD, page.number, number))
        self.num_onboarded += 1

    # -- taking pages

    def take(self, count: int) -> tuple[list[int], list[bool]]:
        """`count` pages of those available, and whether each is handed out for the first time; the caller knows that
        there are as many."""
        while len(self.free) < count:
            page = self._order.pop()
            assert page is not None
            if not (self._has_host and page.priority >= self._least and self._offload(page)):
                self.free.append(self.forget(page))
        self.num_allocated += count
        split = len(self.free) - count
        taken = self.free[split:]
        del self.free[split:]
        taken.reverse()
        are_new = [not self._is_used[number] for number in taken]
        for number in taken:
            self._is_used[number] = True
        self.num_new += sum(are_new)
        return taken, are_new

    def forget(self, page: CachedPage) -> int:
        """Take an unheld page without children on the device out of the tree, and what is cached after it on the host.
        Its number, of a page that is the caller's now."""
        for below in reversed(list(page.descendants())):
            self.host_free.append(self._drop(below))
        return self._drop(page)

    def give_up(self, page: CachedPage) -> None:
        """Free a page that nobody holds, of either tier, without children on the device."""
        (self.host_free if page.is_on_host else self.free).append(self.forget(page))

    def give_up_all(self) -> None:
        """Free all pages that nobody holds, and take the others out of the tree."""
        for page in reversed(list(self.root.descendants())):
            if not page.holders:
                self.give_up(page)
                continue
            assert page.parent is not None
            page.parent.remove(page)
            page.parent = None
            if self._log is not None:
                self._log.note_removed(page.hash)

    # -- one page

    def _offload(self, page: CachedPage) -> bool:
        """Copy a page that goes from the device to the host; the device's is free. False: there is no page for it."""
        first = None if self.host_free else self._host_order.pop()
        if not self.host_free and first is None:
            return False
        self._note_level(page, DEVICE_LEVEL, HOST_LEVEL)
        if first is not None:
            self.host_free.append(self._drop(first))
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

    def _drop(self, page: CachedPage) -> int:
        """Take an unheld page without children out of the tree."""
        if page.is_on_host:
            self.num_on_host -= 1
        else:
            self.num_cached -= 1
        page.released, page.expires = 0, None
        parent = page.parent
        assert parent is not None
        parent.remove(page)
        if self._log is not None:
            self._log.note_removed(page.hash)
        self._offer(parent)
        return page.number

    def _offer(self, parent: CachedPage) -> None:
        """A page that lost a child may go in its turn, if nobody holds it."""
        if parent.released:
            (self._host_order if parent.is_on_host else self._order).offer(parent)

    def _note_level(self, page: CachedPage, old: int, new: int) -> None:
        if self._log is not None:
            self._log.note(PageUpdated(page.hash, level=Change(old, new)))


# MERGED-DOC """Copies of whole pages that the host's bookkeeping takes for granted, and that the device is to make, in their order.
# MERGED-DOC
# MERGED-DOC They are made in the order of the device's stream, before whatever else is launched in the same step: what a page is
# MERGED-DOC copied from was written by work that was launched before, and what it is copied to is read and written by work that is
# MERGED-DOC launched after. Nobody waits for them on the host.
# MERGED-DOC """


class MoveKind(Enum):
    """From where to where a page is copied."""

    COPY = "from the device to the device"
    OFFLOAD = "from the device to the host"
    ONBOARD = "from the host to the device"


class Move(NamedTuple):
    """Page `source` is copied to page `target`; pages of the device and of the host are numbered each by themselves."""

    kind: MoveKind
    source: int
    target: int


# MERGED-DOC """Which cached page goes first, of those of one tier that nobody holds.
# MERGED-DOC
# MERGED-DOC The leaf of the lowest priority; of these, the one that was given back first. A page with a cached child beside it is
# MERGED-DOC kept, whatever its own priority: what comes after it could not be found without it. So of a text the end goes before the
# MERGED-DOC beginning.
# MERGED-DOC
# MERGED-DOC Both heaps hold stale entries, of pages that were taken again or moved since; they are dropped when they come up, or all
# MERGED-DOC at once when there are more of them than pages.
# MERGED-DOC """


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
