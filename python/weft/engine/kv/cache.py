"""The KV block manager. It tracks the pages of each sequence, and the cached content of pages.

A page is in one of three states:

- free: it has no content that a prefix could match;
- held: one or more sequences use it;
- cached: no sequence holds it, but a prefix can match its content until the page is evicted (`pool.py`).

Page 0 is in none of these states. Padding rows, and positions beyond a sequence's pages, point at it.

A page enters the prefix tree once all its positions are valid. From then on it is read-only: a sequence writes only
positions from `num_reused` on, in pages that it does not share.

Two sequences may write the same text at the same time. The page that is stored first is the one that prefixes match,
and the other becomes its duplicate. When the last holder of the first page ends, a duplicate replaces it, and the first
page becomes free. So no page is kept that nothing reads.

The partly filled page at the end of a text is cached too. A sequence that continues this text takes the page out of the
tree and continues to write in it.

In a model with windows in some layers only, a page of a text is also a page in those layers (`windowed.py`). A model
with recurrent states can reuse a prefix only up to a snapshot of its state (`snapshots.py`). Then the cached
prefix of a text ends at the last usable snapshot.

All of this is the host's view. The device follows in stream order. After a page has been released and allocated to
another sequence, earlier launches may still read or write it for the old sequence; later launches never do.
"""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import NamedTuple

from weft.core.retention import Retention
from weft.engine.kv.checks import check_pages, check_snapshots, check_windowed
from weft.engine.kv.events import (
    DEVICE_LEVEL,
    ROOT_HASH,
    Change,
    KvEventLog,
    PagesStored,
    PageUpdated,
    StoredPage,
    page_hash,
)
from weft.engine.kv.pool import Move, MoveKind, PagePool
from weft.engine.kv.prefix_tree import CachedPage, Snapshot, Tokens
from weft.engine.kv.snapshots import PendingSnapshot, SnapshotQuery, Snapshots
from weft.engine.kv.windowed import HeldWindow, WindowedPages
from weft.engine.stats import KvUsage

OFFLOAD_MIN_PRIORITY = 30
"""The lowest priority at which an evicted page is copied to the host instead of being dropped."""


class PrefixMatch(NamedTuple):
    """The cached prefix of a text: full pages, then possibly the first `num_partial` positions of `partial_page`.

    continues: whether `partial_page` is the partly filled last page of a cached text that this text continues.
    snapshot: the state after the prefix. None for a model without states.
    num_cached: the number of cached tokens, as if the model had no states. 0 without `snapshot`s.
    """

    full_pages: list[CachedPage]
    partial_page: CachedPage | None = None
    num_partial: int = 0
    continues: bool = False
    snapshot: Snapshot | None = None
    num_cached: int = 0


class PageCounts(NamedTuple):
    """Counts of the pages that hold a sequence's text on admission. The partly filled last page counts.

    allocated: pages that were allocated for the text, `new` of them for the first time ever.
    reused: pages that the cache matched, fully or partly.
    missed: pages that were looked up in the cache and not matched.
    """

    allocated: int = 0
    new: int = 0
    reused: int = 0
    missed: int = 0


class _Reuse(Enum):
    """How a new sequence uses the page of which only the beginning matches its text."""

    NONE = "read the positions again"
    COPY = "copy the page"
    TAKE_OVER = "take the page out of the cache, and write on in it"


class Allocation(NamedTuple):
    """The pages of a new sequence. The first `num_partial` positions after the fully matched pages are valid as soon as
    the device has made the page copies `copies`, (from, to). `carried` are the snapshots of a page that was taken out
    of the cache, and `windowed` is its windowed page. `source` is a page that was copied."""

    pages: list[int]
    num_partial: int
    copies: list[tuple[int, int]]
    counts: PageCounts
    carried: tuple[Snapshot, ...] = ()
    source: CachedPage | None = None
    windowed: int = 0


def match_prefix(
    root: CachedPage, size: int, tokens: abc.Sequence[int], margin: int, salt: int, partial: bool
) -> PrefixMatch:
    """Find the longest cached prefix of `tokens`, in pages of `size` positions.

    The match is shortened by `margin` positions. It never includes the last token, because the forward must compute
    that token's logits. `partial`: whether the last matched page may match in its first positions only.
    """
    text, pages, last = tuple(tokens), list[CachedPage](), root
    for start in range(0, len(text) - size + 1, size):
        page = last.child(text[start : start + size], salt)
        if page is None:
            break
        pages.append(page)
        last, salt = page, 0  # only the first page of a text has the salt
    num_matched, continues = len(pages) * size, False
    if partial:
        nearest, num_common = last.nearest(text[num_matched : num_matched + size], salt)
        if nearest is not None:
            pages.append(nearest)
            num_matched += num_common
            continues = num_common == len(nearest.tokens) < size
    num_full, num_partial = divmod(max(min(num_matched, len(text) - 1) - margin, 0), size)
    if not num_partial or not partial:
        return PrefixMatch(pages[:num_full])
    partial_page = pages[num_full]
    return PrefixMatch(pages[:num_full], partial_page, num_partial, continues and partial_page is pages[-1])


def match_snapshot(
    root: CachedPage, size: int, tokens: abc.Sequence[int], margin: int, salt: int, partial: bool
) -> PrefixMatch:
    """Find the longest cached prefix of `tokens` after which the state was kept. The arguments are those of
    `match_prefix`."""
    text = tuple(tokens)
    whole = match_prefix(root, size, text, 0, salt, partial)
    pages, start = whole.full_pages, len(whole.full_pages) * size
    num_cached = start + whole.num_partial
    if whole.partial_page is not None:
        # All children that share tokens with the text, because the nearest one may have no snapshot.
        page_tokens = text[start : min(start + size, len(text) - 1)]
        parent, salt = (pages[-1], 0) if pages else (root, salt)
        found = [
            (snapshot, page)
            for page, length in parent.similar(page_tokens, salt)
            if (snapshot := SnapshotQuery(text, start + length, margin).find(page, start)) is not None
        ]
        if found:
            snapshot, page = max(found, key=lambda each: each[0].offset)
            continues = snapshot.offset == len(page.tokens)
            return PrefixMatch(pages, page, snapshot.offset, continues, snapshot, num_cached)
    query = SnapshotQuery(text, num_cached, margin, multiple=1 if partial else size)
    for index in reversed(range(len(pages))):
        last = query.find(pages[index], index * size)
        if last is None:
            continue
        if last.offset == size:
            return PrefixMatch(pages[: index + 1], snapshot=last, num_cached=num_cached)
        return PrefixMatch(pages[:index], pages[index], last.offset, snapshot=last, num_cached=num_cached)
    return PrefixMatch([], num_cached=num_cached)


@dataclass(eq=False, slots=True)
class KvSequence:
    """The pages that one sequence holds.

    pages: page numbers in the order of positions. A page that was released early (`KvManager.release_pages`) is 0.
    num_reused: the number of cached positions at the start. They are valid once the device has made the manager's
        moves; prefill starts after them.
    copies: the moves that copy a partly matched page to a page of the sequence, (from, to).
    chain: the tree's pages for the first `len(chain)` entries of `pages`.
    is_lost: whether the sequence may not cache any more pages.

    For models with states only:

    snapshot: the row of the state after the first `num_reused` tokens. It must be loaded before the sequence reads on.
        None if nothing is reused.
    save_at: the positions, in order, at which the state should be kept while the text is read.
    pending: the rows that the sequence took for states of its text.

    windowed: the windowed pages, for models with windows in some layers only.
    """

    pages: list[int]
    num_reused: int
    copies: list[tuple[int, int]]
    num_prompt: int
    retention: Retention | None
    chain: list[CachedPage] = field(repr=False)
    salt: int = 0
    counts: PageCounts = field(default_factory=PageCounts)
    is_lost: bool = False
    snapshot: int | None = None
    save_at: list[int] = field(default_factory=list)
    pending: list[PendingSnapshot] = field(default_factory=list)
    windowed: HeldWindow | None = None

    @property
    def num_pages(self) -> int:
        """The number of all pages, windowed ones too."""
        return len(self.pages) + (len(self.windowed.pages) if self.windowed is not None else 0)


class KvManager:
    """Manages pages 1 to `num_pages` - 1, each of `page_size` positions.

    reuse: whether content is cached at all.
    partial_reuse: whether a page that matches only in its first positions is reused too, by copying it.
    copy_on_partial_reuse: if False, such a page is not copied but taken out of the cache. That works only if no
        sequence holds it and it has no children; otherwise it is not reused.
    num_host_pages: the number of host pages, for evicted pages of priority `offload_min_priority` or more.
    num_snapshots: the number of rows for snapshots; 0 for a model without states, or if nothing is reused.
    windowed: the windowed pages, if the layers with windows have pages of their own. They work neither with snapshots
        nor with host pages, and not for beam searches.
    log: records cache events.
    clock: returns the time in seconds.
    moves: page copies that the device must make, in this order.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        reuse: bool = True,
        partial_reuse: bool = True,
        copy_on_partial_reuse: bool = True,
        num_host_pages: int = 0,
        offload_min_priority: int = OFFLOAD_MIN_PRIORITY,
        num_snapshots: int = 0,
        windowed: WindowedPages | None = None,
        log: KvEventLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.log = log
        self._reuse = reuse
        self._partial_reuse = partial_reuse
        self._copies_partial_pages = copy_on_partial_reuse
        self._num_host_pages = num_host_pages
        assert reuse or not num_snapshots
        self.num_snapshots = num_snapshots
        self._snapshots = Snapshots(num_snapshots)
        assert windowed is None or not (num_host_pages or num_snapshots)
        self.windowed = windowed
        self._pool = PagePool(
            num_pages, num_host_pages, offload_min_priority, log, clock, self._snapshots, windowed
        )
        self.moves = self._pool.moves
        self._sequences: set[KvSequence] = set()
        self._num_reused = self._num_missed = 0
        self._usage: KvUsage | None = None  # since the last change

    @property
    def num_available(self) -> int:
        """The number of pages that can be allocated: free and cached pages."""
        return self._pool.num_available

    def pages_needed(self, num_positions: int) -> int:
        """The number of pages that hold positions 0 to `num_positions` - 1."""
        return -(-num_positions // self.page_size)

    def begin(
        self,
        tokens: abc.Sequence[int],
        num_positions: int,
        *,
        margin: int = 0,
        reuse: bool = True,
        retention: Retention | None = None,
        num_prompt: int | None = None,
        salt: str | None = None,
    ) -> KvSequence | None:
        """Allocate pages for positions 0 to `num_positions` - 1 of a text that begins with `tokens`. Returns None, and
        changes nothing, if too few pages are available.

        The sequence shares the pages of the cached prefix, which is shortened by `margin` positions and never includes
        the last token. With `reuse` False, nothing is looked up. Only texts of the same `salt` match. With snapshots,
        the prefix ends at a snapshot, whose row is the sequence's `snapshot`.

        `retention` sets the priorities of pages. It treats the first `num_prompt` tokens as the prompt (default: all).
        A sequence that resumes after preemption has fewer prompt tokens than `tokens`.
        """
        assert 0 < len(tokens) <= num_positions
        salt_number, looks_up = number_of_salt(salt), reuse and self._reuse
        match, num_pages = PrefixMatch([]), self.pages_needed(num_positions)
        if looks_up:
            match = self._match(tokens, margin, salt_number, num_pages)
        if self.windowed is not None and not self.windowed.can_begin(
            len(match.full_pages) * self.page_size + match.num_partial, len(tokens)
        ):
            return None
        self._usage = None
        allocation = self._allocate(match, num_pages, self.pages_needed(len(tokens)))
        if allocation is None:
            return None
        num_reused = len(match.full_pages) * self.page_size + allocation.num_partial
        counts = allocation.counts if looks_up else allocation.counts._replace(missed=0)
        self._num_reused += counts.reused
        self._num_missed += counts.missed
        sequence = KvSequence(
            allocation.pages,
            num_reused,
            allocation.copies,
            len(tokens) if num_prompt is None else num_prompt,
            retention,
            match.full_pages,
            salt_number,
            counts,
        )
        self._sequences.add(sequence)
        if self.windowed is not None:
            sequence.windowed, copy = self.windowed.begin(
                sequence.chain, num_reused, len(tokens), allocation.source, allocation.windowed
            )
            if copy is not None:
                self.moves.append(Move(MoveKind.COPY_WINDOWED, *copy))
        if self.num_snapshots:
            self._begin_snapshots(sequence, match, allocation.carried, len(tokens) - 1 - margin)
        if retention is not None:
            for index in range(len(match.full_pages)):
                self._retain(sequence, index)
        return sequence

    def grow(self, sequence: KvSequence, num_positions: int) -> bool:
        """Append pages until the sequence has room for `num_positions` positions. Returns False and changes nothing if
        too few pages are available."""
        count = self.pages_needed(num_positions) - len(sequence.pages)
        if count > 0:
            if count > self.num_available:
                return False
            self._usage = None
            sequence.pages += self._pool.take(count)[0]
        if self.windowed is not None and sequence.windowed is not None:
            self._usage = None
            self.windowed.grow(sequence.windowed, num_positions)
        return True

    def release_hidden(self, sequence: KvSequence, position: int) -> None:
        """Release the windowed pages that no query at `position` or later sees. Cached ones stay cached until they are
        evicted."""
        assert self.windowed is not None and sequence.windowed is not None
        self._usage = None
        self.windowed.release_hidden(sequence.windowed, sequence.chain, position)

    def store(self, sequence: KvSequence, tokens: abc.Sequence[int], num_valid: int) -> None:
        """Cache the full pages among the first `num_valid` positions.

        The work launched so far must write the keys and values of `tokens` to these positions, and later work must not
        overwrite them. The call is cheap unless another page has become full.
        """
        if self._reuse and not sequence.is_lost and num_valid >= (len(sequence.chain) + 1) * self.page_size:
            self._usage = None
            self._note_stored(sequence, self._store(sequence, tokens, num_valid))
            if sequence.pending:
                self._attach_pending(sequence, tokens, len(sequence.chain) * self.page_size)

    def take_snapshot(self, sequence: KvSequence, position: int, next_token: int | None = None) -> int | None:
        """Take a row for the state after the first `position` tokens of a sequence's text. Evicts the snapshot that was
        used least recently if no row is free. Returns None if the row could not be found later, or if all rows are
        pending.

        Work that is launched later than all earlier work must write the row. The call that stores the position, `store`
        or `end`, attaches the snapshot to its page; `end` frees the row if the position is not stored. `next_token`
        is the token after the position, if the text does not have it.
        """
        is_findable = self._partial_reuse or position % self.page_size == 0
        if not self.num_snapshots or sequence.is_lost or not is_findable:
            return None
        self._usage = None
        row = self._snapshots.take()
        if row is not None:
            sequence.pending.append(PendingSnapshot(position, row, next_token))
        return row

    def end(self, sequence: KvSequence, tokens: abc.Sequence[int] = (), num_valid: int = 0) -> None:
        """Release all pages of a sequence. Call it exactly once for each sequence. Cached pages stay cached until they
        are evicted.

        With `num_valid`, the full pages are cached first, as in `store`. With partial reuse, the partly filled last
        page is cached too.
        """
        assert sequence in self._sequences, "it has ended already"
        self._sequences.remove(sequence)
        self._usage, last = None, None
        if self._reuse and num_valid and not sequence.is_lost:
            stored = self._store(sequence, tokens, num_valid)
            last = self._store_last(sequence, tokens, num_valid) if self._partial_reuse else None
            self._note_stored(sequence, stored if last is None else [*stored, last])
            if sequence.pending:
                self._attach_pending(sequence, tokens, num_valid)
        if self.windowed is not None and sequence.windowed is not None:
            chain = sequence.chain if last is None else [*sequence.chain, last]
            self.windowed.end(sequence.windowed, chain)
        pool, num_cached = self._pool, len(sequence.chain) + (last is not None)
        pool.free.extend(filter(None, reversed(sequence.pages[num_cached:])))
        for page, number in zip(sequence.chain, sequence.pages, strict=False):
            self._release(page, number)
        if last is not None:
            pool.release(last)
        self._snapshots.free += [each.row for each in sequence.pending]
        sequence.pages, sequence.chain, sequence.pending = [], [], []

    def release_pages(self, sequence: KvSequence, first: int, stop: int) -> None:
        """Release pages `first` to `stop` - 1 of a sequence that no longer reads them. Page 0 replaces them in `pages`.

        No page of the sequence from `stop` on may be in the tree. The sequence caches no more pages afterwards, because
        a prefix could not match them without the missing ones. Pages in the range that are cached stay cached.
        """
        chain, pages = sequence.chain, sequence.pages
        assert len(chain) <= max(first, stop), "cached pages after a page can't be matched without it"
        self._usage = None
        for index in range(first, stop):
            if index < len(chain):
                self._release(chain[index], pages[index])
            elif pages[index]:
                self._pool.free.append(pages[index])
            pages[index] = 0
        del chain[first:]
        sequence.is_lost = True

    def take_moves(self) -> list[Move]:
        """Take the moves since the last call. The caller must launch them before any later work."""
        moves = list(self.moves)
        self.moves.clear()
        return moves

    def discard_cache(self) -> None:
        """Discard the whole cache, and never cache the pages that are held now. Called after moves failed, when pages
        may not have the content that the tree records."""
        self._usage = None
        self._pool.discard_all()
        for sequence in self._sequences:
            sequence.is_lost = True

    def usage(self) -> KvUsage:
        """The numbers of pages held, free and cached now, and the counters since the manager was made."""
        if self._usage is not None:
            return self._usage
        pool = self._pool
        available, windowed = len(pool.free) + pool.num_cached, self.windowed
        self._usage = KvUsage(
            page_size=self.page_size,
            max_pages=self.num_pages - 1,
            free_pages=available,
            cached_pages=pool.num_cached,
            used_pages=self.num_pages - 1 - available,
            allocated_pages=pool.num_allocated,
            new_pages=pool.num_new,
            reused_pages=self._num_reused,
            missed_pages=self._num_missed,
            max_host_pages=self._num_host_pages,
            host_pages=pool.num_on_host,
            offloaded_pages=pool.num_offloaded,
            onboarded_pages=pool.num_onboarded,
            max_windowed_pages=windowed.num_pages - 1 if windowed is not None else 0,
            free_windowed_pages=windowed.num_available if windowed is not None else 0,
            max_snapshots=self.num_snapshots,
            snapshots=len(self._snapshots.attached),
            snapshot_hits=self._snapshots.num_hits,
        )
        return self._usage

    def check(self) -> None:
        """Assert the invariants that hold between calls (`checks.py`). Visits every page."""
        held = [(sequence.chain, sequence.pages) for sequence in self._sequences]
        check_pages(self._pool, held, self.page_size, (self.num_pages, self._num_host_pages))
        pending = [each.row for sequence in self._sequences for each in sequence.pending]
        check_snapshots(self._snapshots, self._pool.root, pending)
        if self.windowed is not None:
            windows = [(each.chain, each.windowed) for each in self._sequences if each.windowed is not None]
            check_windowed(self.windowed, self._pool.root, windows)

    # -- allocation

    def _match(self, tokens: abc.Sequence[int], margin: int, salt: int, num_pages: int) -> PrefixMatch:
        """Find the cached prefix that a new sequence of `num_pages` pages begins with."""
        root, size = self._pool.root, self.page_size
        if not self.num_snapshots and self.windowed is None:
            return match_prefix(root, size, tokens, margin, salt, self._partial_reuse)
        for partial in (True, False) if self._partial_reuse else (False,):
            if self.num_snapshots:
                match = match_snapshot(root, size, tokens, margin, salt, partial)
            else:
                match = self._within_windows(match_prefix(root, size, tokens, margin, salt, partial))
            # A prefix that ends within a page is of no use without that page: a snapshot there can't be loaded, and the
            # windows of a shorter prefix begin earlier.
            if match.partial_page is None:
                break
            if self._reuse_of(match, self._num_spare(match, num_pages)) is not _Reuse.NONE:
                break
        return match

    def _within_windows(self, match: PrefixMatch) -> PrefixMatch:
        """Shorten a match to a prefix after which all windows are cached."""
        assert self.windowed is not None
        pages, partial = match.full_pages, match.partial_page
        position = len(pages) * self.page_size + match.num_partial
        all_pages = pages if partial is None else [*pages, partial]
        count = self.windowed.num_usable(all_pages, position)
        return match if count == len(all_pages) else PrefixMatch(pages[:count])

    def _allocate(self, match: PrefixMatch, num_pages: int, num_text_pages: int) -> Allocation | None:
        """Hold the matched pages and take new ones, `num_pages` in all. The first `num_text_pages` hold the text.
        Returns None and changes nothing if too few pages are available.

        For example, a text of three pages gets four. Its first two pages are cached: A on the device, B on the host. A
        cached page P matches the beginning of the third. So A is held, and three pages are taken: one to which B is
        copied, one with the content of P (a copy, or P itself), and an empty one.
        """
        pool, shared = self._pool, match.full_pages
        on_host = [page for page in shared if page.is_on_host]
        num_held = len(shared) - len(on_host)  # without a copy
        num_taken, num_spare = num_pages - num_held, self._num_spare(match, num_pages)
        if num_spare < 0:
            return None
        reuse = self._reuse_of(match, num_spare)
        for page in shared:
            (pool.pin if page.is_on_host else pool.hold)(page)
        carried: tuple[Snapshot, ...] = ()
        windowed, source = 0, match.partial_page
        if reuse is _Reuse.TAKE_OVER and source is not None:
            carried = self._snapshots.detach(source)
            windowed = self.windowed.take_over(source) if self.windowed is not None else 0
        taken, are_new, copies = self._take(match.partial_page, reuse, num_taken, len(on_host))
        for page, number in zip(on_host, taken, strict=False):
            pool.onboard(page, number)
        pages = [page.number for page in shared] + taken[len(on_host) :]
        num_matched = len(shared) + (reuse is not _Reuse.NONE)
        # A page that was taken over on the device is in `taken`, but was not allocated. `are_new` leaves it out.
        num_taken_over = len(taken) - len(are_new)
        allocated = num_text_pages - num_held - num_taken_over
        num_new = sum(are_new[:allocated])  # the text's pages come first
        counts = PageCounts(allocated, num_new, num_matched, num_text_pages - num_matched)
        num_partial = 0 if reuse is _Reuse.NONE else match.num_partial
        copied = source if reuse is _Reuse.COPY else None
        return Allocation(pages, num_partial, copies, counts, carried, copied, windowed)

    def _num_spare(self, match: PrefixMatch, num_pages: int) -> int:
        """How many more pages are available than a sequence of `num_pages` pages takes. Negative: too few are."""
        num_held = sum(not page.is_on_host for page in match.full_pages)
        # `num_available` counts unheld matched pages. The sequence will hold them, so subtract them.
        num_unheld = sum(not (page.holders or page.is_on_host) for page in match.full_pages)
        return self._pool.num_available - num_unheld - (num_pages - num_held)

    def _reuse_of(self, match: PrefixMatch, num_spare: int) -> _Reuse:
        """Decide how a sequence uses the partly matched page. `num_spare`: how many more pages are available than the
        sequence takes."""
        source = match.partial_page
        if source is None:
            return _Reuse.NONE
        # While an unheld page on the device is copied, it is not available itself.
        can_copy = self._copies_partial_pages and (source.is_on_host or source.holders > 0 or num_spare > 0)
        # The sequence takes the page over, without a copy, if it continues the text that ended there. It also does so
        # if it can't copy. Otherwise, with no page left as the target, a sequence that fits would wait for pages that
        # its own earlier run left in the cache.
        is_unused = not (source.holders or source.children)
        if is_unused and (match.continues or not can_copy):
            return _Reuse.TAKE_OVER
        return _Reuse.COPY if can_copy else _Reuse.NONE

    def _take(
        self, source: CachedPage | None, reuse: _Reuse, count: int, place: int
    ) -> tuple[list[int], list[bool], list[tuple[int, int]]]:
        """Get `count` pages, of which the one at index `place` has the content of `source`, unless that is not reused.

        Returns the pages, for each allocated one whether it was never allocated before, and the copies from device
        page to device page.
        """
        pool = self._pool
        if source is None or reuse is _Reuse.NONE:
            return *pool.take(count), []
        if source.is_on_host:
            pool.pin(source)
            taken, are_new = pool.take(count)
            pool.copy_in(source, taken[place])
            if reuse is _Reuse.TAKE_OVER:
                pool.discard(source)
            else:
                pool.unpin(source)
            return taken, are_new, []
        if reuse is _Reuse.TAKE_OVER:
            number = pool.remove(source)
            taken, are_new = pool.take(count - 1)
            taken.insert(place, number)
            return taken, are_new, []
        pool.hold(source)  # otherwise `take` might evict the source to get the target of its own copy
        taken, are_new = pool.take(count)
        pool.release(source)
        copy = source.number, taken[place]
        pool.moves.append(Move(MoveKind.COPY, *copy))
        return taken, are_new, [copy]

    # -- snapshots

    def _begin_snapshots(
        self, sequence: KvSequence, match: PrefixMatch, carried: abc.Sequence[Snapshot], last: int
    ) -> None:
        """Set a new sequence's snapshots. It has the `carried` ones of a page that it took out of the cache. `last` is
        the last position with a state that other texts can reuse."""
        size = self.page_size
        if match.snapshot is not None:
            sequence.snapshot = self._snapshots.use(match.snapshot)
        start = len(match.full_pages) * size
        for snapshot in carried:
            if snapshot.offset <= match.num_partial:
                pending = PendingSnapshot(start + snapshot.offset, snapshot.row, snapshot.next_token)
                sequence.pending.append(pending)
            else:  # the text differs before it
                self._snapshots.free.append(snapshot.row)
        # Keep the state at the end of the text, for texts that continue it, and where it leaves the cached texts, for
        # other texts that leave them there. Both are rounded down to a page's end, because only full pages are stored
        # while the text is read.
        ends = {max(min(last, position), 0) // size * size for position in (last, match.num_cached)}
        sequence.save_at = sorted(end for end in ends if end > sequence.num_reused)

    def _attach_pending(self, sequence: KvSequence, tokens: abc.Sequence[int], num_stored: int) -> None:
        """Attach the pending rows of the first `num_stored` positions, which are stored, to their pages."""
        size, chain, left = self.page_size, sequence.chain, list[PendingSnapshot]()
        for pending in sequence.pending:
            position = pending.position
            if position > num_stored:
                left.append(pending)
                continue
            index = (position - 1) // size
            start = index * size
            page: CachedPage | None
            if index < len(chain):
                page = chain[index]
            else:  # the partly filled last page, or another one that begins with its tokens
                parent = chain[-1] if chain else self._pool.root
                salt = 0 if index else sequence.salt
                page, _ = parent.nearest(tuple(tokens[start:num_stored]), salt)
            if page is None:
                left.append(pending)
                continue
            if pending.next_token is None and position < len(tokens):
                pending = pending._replace(next_token=tokens[position])
            self._snapshots.attach(pending, page, position - start)
        sequence.pending = left

    # -- caching

    def _store(self, sequence: KvSequence, tokens: abc.Sequence[int], num_valid: int) -> list[CachedPage]:
        """Cache the sequence's full pages. Returns the pages that the tree did not have."""
        size, chain, new = self.page_size, sequence.chain, list[CachedPage]()
        assert num_valid <= min(len(tokens), len(sequence.pages) * size)
        for index in range(len(chain), num_valid // size):
            parent = chain[-1] if chain else self._pool.root
            page_tokens = tuple(tokens[index * size : (index + 1) * size])
            salt = 0 if index else sequence.salt
            page = parent.child(page_tokens, salt)
            if page is None:
                page = self._add(parent, page_tokens, sequence.pages[index], salt)
                new.append(page)
            else:
                self._share(page, sequence.pages[index])
            if self.windowed is not None and sequence.windowed is not None:
                self.windowed.store(page, sequence.windowed.pages[index])
            chain.append(page)
            self._retain(sequence, index, is_new=bool(new))  # after a new page, all pages are new
        return new

    def _store_last(
        self, sequence: KvSequence, tokens: abc.Sequence[int], num_valid: int
    ) -> CachedPage | None:
        """Cache the partly filled page at the end of the text, and return it. None if there is no such page, or if its
        content is already cached."""
        index, size = len(sequence.chain), self.page_size
        page_tokens = tuple(tokens[index * size : num_valid])
        if not page_tokens:
            return None
        salt = 0 if index else sequence.salt
        parent = sequence.chain[-1] if index else self._pool.root
        if parent.nearest(page_tokens, salt)[1] == len(page_tokens):
            return None
        page = self._add(parent, page_tokens, sequence.pages[index], salt)
        if self.windowed is not None and sequence.windowed is not None:
            self.windowed.store(page, sequence.windowed.pages[index])
        if sequence.retention is not None:
            self._set_priority(page, sequence, index)
        return page

    def _add(self, parent: CachedPage, tokens: Tokens, number: int, salt: int) -> CachedPage:
        """Add a page to the tree, held by the sequence that wrote it."""
        shorter = parent.beginning(tokens, salt)
        page = parent.add(number, tokens, salt)
        page.holders = 1
        if shorter is not None:  # no page's tokens may be a prefix of a sibling's
            self._snapshots.move(shorter, page)
            self._pool.discard(shorter)
        if self.log is not None:
            parent_hash = ROOT_HASH if parent is self._pool.root else parent.hash
            page.hash = page_hash(parent_hash, tokens, salt)
        return page

    def _share(self, page: CachedPage, number: int) -> None:
        """Hold a page of the tree with the same content as the sequence's own page `number`.

        If no sequence holds the tree's page, or it is on the host, page `number` replaces it. Otherwise page `number`
        becomes its duplicate.
        """
        if page.is_on_host:
            self._pool.pin(page)
            self._pool.onboard(page, number, is_copied=False)
        elif page.holders:
            page.duplicates.append(number)
        else:
            self._pool.hold(page)
            self._pool.replace(page, number)

    def _retain(self, sequence: KvSequence, index: int, is_new: bool = False) -> None:
        """Set a held page's priority as the sequence's retention says. The latest sequence wins."""
        if sequence.retention is None:
            return
        page = sequence.chain[index]
        old = page.priority
        self._set_priority(page, sequence, index)
        if self.log is not None and page.priority != old and not is_new:
            self.log.note(PageUpdated(page.hash, priority=Change(old, page.priority)))

    def _set_priority(self, page: CachedPage, sequence: KvSequence, index: int) -> None:
        assert sequence.retention is not None
        wanted = sequence.retention.at(index * self.page_size, sequence.num_prompt)
        if wanted is not None:
            page.priority, page.duration_s = wanted

    def _release(self, page: CachedPage, number: int) -> None:
        """Release a sequence's hold on a page of the tree. The sequence's page `number` is the page itself or its
        duplicate."""
        if page.number == number:
            self._pool.release(page)
        else:
            page.duplicates.remove(number)
            self._pool.free.append(number)

    def _note_stored(self, sequence: KvSequence, pages: abc.Sequence[CachedPage]) -> None:
        if self.log is None or not pages:
            return
        parent = pages[0].parent
        parent_hash = None if parent is None or parent is self._pool.root else parent.hash
        stored = [StoredPage(page.hash, page.tokens, DEVICE_LEVEL, page.priority) for page in pages]
        self.log.note(PagesStored(parent_hash, tuple(stored)))


def number_of_salt(salt: str | None) -> int:
    """Hash a salt to a number above 0; None gives 0. The tree uses this number of fixed size as a key, instead of a
    user's string of any length."""
    return 0 if salt is None else int.from_bytes(sha256(salt.encode()).digest())
