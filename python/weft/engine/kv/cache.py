"""Pages of keys and values: who holds which, and what is kept of those who are done.

Page 0 belongs to nobody: padding rows and positions beyond a sequence's pages point at it. All others are free, held by
sequences, or cached: held by nobody, with content that can be found again, until somebody needs the page (`pool.py`).

A page can be found once all its positions are valid, and is not written from then on: a sequence writes only positions
from `num_reused` on, in pages of its own. What can be found is held in common. Where two sequences write the same text
at the same time, the page stored first is found, and the other's stands ready to replace it: it does when the first
one's last holder goes, so that nobody keeps a page that nobody reads. A page in which a text ended is found, too: who
goes on with the text takes it out of the cache, and writes on in it.

All of this is the host's view. The device follows in stream order: a page that is given back and taken by another may
still be read or written by work that was launched before, never after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from weft.core.retention import Retention, RetentionRange
from weft.engine.kv.checks import check_pages
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
from weft.engine.kv.pool import Keeping, Move, MoveKind, PagePool
from weft.engine.kv.prefix_tree import CachedPage, Tokens
from weft.engine.stats import KvUsage

__all__ = ["Keeping", "KvManager", "KvSequence", "Retention", "RetentionRange"]


@dataclass(eq=False, slots=True)
class KvSequence:
    """What one request holds. `pages` are those of its positions, in order.

    The first `num_reused` positions are there already: reading starts after them, once the moves of the manager were
    made on the device. `copies` are those of them that copy a page, the first part of which is found, to an own page.
    Where it `is_lost`, nothing more of it is found by others. Pages that it gave back (`give_back`) are 0.
    """

    pages: list[int]
    num_reused: int
    copies: list[tuple[int, int]]
    num_prompt: int
    retention: Retention | None
    chain: list[CachedPage] = field(repr=False)  # of `pages`, the first ones: those that can be found
    salt: int = 0
    counts: PageCounts = field(default_factory=PageCounts)
    is_lost: bool = False


class KvManager:
    """Pages 1 to `num_pages` - 1, each of `page_size` positions.

    `reuse`: whether anything is kept to be found again; `keeping` says how. `partial_reuse`: whether also a part of a
    page is used, by a copy of it; with `copy_on_partial_reuse` off, instead by taking the page itself out of the cache,
    where nobody holds it and nothing is cached after it, or else not at all. `moves` are copies of pages that the
    device is to make, in this order.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        reuse: bool = True,
        partial_reuse: bool = True,
        copy_on_partial_reuse: bool = True,
        keeping: Keeping = Keeping(),  # noqa: B008
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._reuse = reuse
        self._partial_reuse = partial_reuse
        self._copies = copy_on_partial_reuse
        self._log = keeping.log
        self._num_host_pages = keeping.num_host_pages
        self._pool = PagePool(num_pages, keeping)
        self.moves = self._pool.moves
        self._sequences: set[KvSequence] = set()
        self._num_reused = self._num_missed = 0

    @property
    def num_available(self) -> int:
        """How many pages can be handed out: free ones and those that are only cached."""
        return self._pool.num_available

    @property
    def events(self) -> KvEventLog | None:
        """What becomes of cached pages; None where nobody wants to know."""
        return self._log

    def pages_needed(self, num_positions: int) -> int:
        """How many pages hold positions 0 to `num_positions` - 1."""
        return -(-num_positions // self.page_size)

    def begin(
        self,
        tokens: Sequence[int],
        num_positions: int,
        *,
        margin: int = 0,
        reuse: bool = True,
        retention: Retention | None = None,
        num_prompt: int | None = None,
        salt: str | None = None,
    ) -> KvSequence | None:
        """Pages for positions 0 to `num_positions` - 1 of a text that begins with `tokens`, or None if there are not
        enough; nothing is taken then.

        What is cached of `tokens` is found, up to `margin` positions less than that, and at least the last token is
        left to be read. With `reuse` False nothing is looked for. `retention` speaks of the first `num_prompt` tokens
        as the prompt (default: all; a request that begins again after a preemption has others). Only texts of the same
        `salt` find each other.
        """
        assert 0 < len(tokens) <= num_positions
        size, salt_number, looked = self.page_size, number_of_salt(salt), reuse and self._reuse
        found = Found([])
        if looked:
            found = find(self._pool.root, size, tokens, margin, salt_number, self._partial_reuse)
        count, num_read = self.pages_needed(num_positions), self.pages_needed(len(tokens))
        taken = take(self._pool, found, count, num_read, self._copies)
        if taken is None:
            return None
        num_reused = len(found.shared) * size + taken.part
        counts = taken.counts if looked else taken.counts._replace(missed=0)
        self._num_reused += counts.reused
        self._num_missed += counts.missed
        prompt = len(tokens) if num_prompt is None else num_prompt
        sequence = KvSequence(
            taken.pages, num_reused, taken.copies, prompt, retention, found.shared, salt_number, counts
        )
        self._sequences.add(sequence)
        for place in range(len(found.shared) if retention is not None else 0):
            self._retain(sequence, place)
        return sequence

    def grow(self, sequence: KvSequence, num_positions: int) -> bool:
        """Append pages, so that there are enough for `num_positions`; False if there are not; nothing is taken then."""
        count = self.pages_needed(num_positions) - len(sequence.pages)
        if count <= 0:
            return True
        if count > self.num_available:
            return False
        sequence.pages += self._pool.take(count)[0]
        return True

    def store(self, sequence: KvSequence, tokens: Sequence[int], num_valid: int) -> None:
        """Let others find the pages that are full: the first `num_valid` positions hold `tokens`' keys and values,
        now or once what is launched is done, and are not written again. Costs nothing until another page is full."""
        if self._reuse and not sequence.is_lost and num_valid >= (len(sequence.chain) + 1) * self.page_size:
            self._note_stored(sequence, self._store(sequence, tokens, num_valid))

    def end(self, sequence: KvSequence, tokens: Sequence[int] = (), num_valid: int = 0) -> None:
        """Give everything back. Once for each sequence. What can be found stays cached until the page is needed.

        If positions are said to be valid, as for `store`, what is full is stored before; and where part of a page is
        of use, the page in which the text ends, too.
        """
        assert sequence in self._sequences, "it has ended already"
        self._sequences.remove(sequence)
        last = None
        if self._reuse and num_valid and not sequence.is_lost:
            stored = self._store(sequence, tokens, num_valid)
            last = self._store_last(sequence, tokens, num_valid) if self._partial_reuse else None
            self._note_stored(sequence, stored if last is None else [*stored, last])
        pool, kept = self._pool, len(sequence.chain) + (last is not None)
        pool.free.extend(filter(None, reversed(sequence.pages[kept:])))
        for page, own in zip(sequence.chain, sequence.pages, strict=False):
            self._let_go(page, own)
        if last is not None:
            pool.release(last)
        sequence.pages, sequence.chain = [], []

    def give_back(self, sequence: KvSequence, first: int, stop: int) -> None:
        """Give pages `first` to `stop` - 1 of a sequence back, which reads them no more; 0 stands in their place. From
        now on it stores no page. Those that can be found stay cached; it holds none of these from `stop` on."""
        chain, pages = sequence.chain, sequence.pages
        assert len(chain) <= max(first, stop), "what comes after a page could not be found without it"
        for place in range(first, stop):
            if place < len(chain):
                self._let_go(chain[place], pages[place])
            elif pages[place]:
                self._pool.free.append(pages[place])
            pages[place] = 0
        del chain[first:]
        sequence.is_lost = True

    def take_moves(self) -> list[Move]:
        """The moves since the last call, which the caller launches before anything else from now on."""
        moves = list(self.moves)
        self.moves.clear()
        return moves

    def forget(self) -> None:
        """Nothing that is cached or held now is ever found again: moves were not made, so that it may not be there."""
        self._pool.give_up_all()
        for sequence in self._sequences:
            sequence.is_lost = True

    def usage(self) -> KvUsage:
        """How many pages are held, free and cached now, and what was found since the manager was made."""
        pool = self._pool
        available = len(pool.free) + pool.num_cached
        return KvUsage(
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
        )

    def check(self) -> None:
        """Assert all that must hold between calls: every page is there once, and held by whom it should be. Looks at
        every page."""
        held = [(sequence.chain, sequence.pages) for sequence in self._sequences]
        check_pages(self._pool, held, self.page_size, (self.num_pages, self._num_host_pages))

    # -- what can be found

    def _store(self, sequence: KvSequence, tokens: Sequence[int], num_valid: int) -> list[CachedPage]:
        """Let the sequence's full pages be found; those that could not be found before."""
        size, chain, new = self.page_size, sequence.chain, list[CachedPage]()
        assert num_valid <= min(len(tokens), len(sequence.pages) * size)
        for place in range(len(chain), num_valid // size):
            parent = chain[-1] if chain else self._pool.root
            text = tuple(tokens[place * size : (place + 1) * size])
            salt = 0 if place else sequence.salt
            page = parent.child(text, salt)
            if page is None:
                page = self._add(parent, text, sequence.pages[place], salt)
                new.append(page)
            else:
                self._share(page, sequence.pages[place])
            chain.append(page)
            self._retain(sequence, place, is_new=bool(new))
        return new

    def _store_last(self, sequence: KvSequence, tokens: Sequence[int], num_valid: int) -> CachedPage | None:
        """Let the page in which the text ends be found; None where its end can be found already."""
        place, size = len(sequence.chain), self.page_size
        text = tuple(tokens[place * size : num_valid])
        if not text:
            return None
        salt = 0 if place else sequence.salt
        parent = sequence.chain[-1] if place else self._pool.root
        if parent.nearest(text, salt)[1] == len(text):
            return None
        page = self._add(parent, text, sequence.pages[place], salt)
        if sequence.retention is not None:
            self._ask(page, sequence, place)
        return page

    def _add(self, parent: CachedPage, text: Tokens, number: int, salt: int) -> CachedPage:
        """A page that can be found now, and that its writer holds."""
        shorter = parent.beginning(text, salt)
        if shorter is not None:
            self._pool.give_up(shorter)
        page = parent.add(number, text, salt)
        page.holders = 1
        if self._log is not None:
            parent_hash = ROOT_HASH if parent is self._pool.root else parent.hash
            page.hash = page_hash(parent_hash, text, salt)
        return page

    def _share(self, page: CachedPage, own: int) -> None:
        """Hold a page that can be found already, of which the sequence has written its page `own`."""
        if page.is_on_host:
            self._pool.pin(page)
            self._pool.onboard(page, own, is_copied=False)
        elif page.holders:
            page.doubles.append(own)
        else:
            self._pool.hold(page)
            self._pool.replace(page, own)

    def _retain(self, sequence: KvSequence, place: int, is_new: bool = False) -> None:
        """Let a held page have what the sequence asks for it: the last one to ask decides."""
        if sequence.retention is None:
            return
        page = sequence.chain[place]
        old = page.priority
        self._ask(page, sequence, place)
        if self._log is not None and page.priority != old and not is_new:
            self._log.note(PageUpdated(page.hash, priority=Change(old, page.priority)))

    def _ask(self, page: CachedPage, sequence: KvSequence, place: int) -> None:
        assert sequence.retention is not None
        asked = sequence.retention.at(place * self.page_size, sequence.num_prompt)
        if asked is not None:
            page.priority, page.duration_s = asked

    def _let_go(self, page: CachedPage, own: int) -> None:
        """A sequence reads a page no more that can be found, or the double `own` of it."""
        if page.number == own:
            self._pool.release(page)
        else:
            page.doubles.remove(own)
            self._pool.free.append(own)

    def _note_stored(self, sequence: KvSequence, pages: Sequence[CachedPage]) -> None:
        if self._log is None or not pages:
            return
        parent = pages[0].parent
        parent_hash = None if parent is None or parent is self._pool.root else parent.hash
        stored = [StoredPage(page.hash, page.tokens, DEVICE_LEVEL, page.priority) for page in pages]
        self._log.note(PagesStored(parent_hash, tuple(stored)))


def number_of_salt(salt: str | None) -> int:
    """The number of a salt, above 0; 0 for none. Each page keeps it, so that it has one length however long the salt
    is."""
    return 0 if salt is None else int.from_bytes(sha256(salt.encode()).digest())


# MERGED-DOC """How a sequence begins: what is cached of its text, and the pages that it gets."""


class Found(NamedTuple):
    """What is cached of a text: whole pages `shared`, and perhaps the first `part` positions of `source` after these.
    It `has_ended` where the text that ended in `source` is the beginning of this one."""

    shared: list[CachedPage]
    source: CachedPage | None = None
    part: int = 0
    has_ended: bool = False


class PageCounts(NamedTuple):
    """What became of the pages that a text begins with when its sequence began: `allocated` were handed out, `new` of
    them for the first time; `reused` were found, also in part; `missed` were looked for and not found. The page in
    which the text ends counts like any other."""

    allocated: int = 0
    new: int = 0
    reused: int = 0
    missed: int = 0


class Taken(NamedTuple):
    """The pages of a sequence that begins. Of what was found `part` more positions than those of whole pages are there;
    `copies` is the page, (from, to), that was copied for them."""

    pages: list[int]
    part: int
    copies: list[tuple[int, int]]
    counts: PageCounts


def find(root: CachedPage, size: int, tokens: Sequence[int], margin: int, salt: int, partial: bool) -> Found:
    """The cached pages, of `size` positions, that `tokens` begin with, up to `margin` positions less than that; at
    least the last token is left to be read. `partial`: whether part of a page is of use."""
    text, pages, last = tuple(tokens), list[CachedPage](), root
    for start in range(0, len(text) - size + 1, size):
        page = last.child(text[start : start + size], salt)
        if page is None:
            break
        pages.append(page)
        last, salt = page, 0
    matched, has_ended = len(pages) * size, False
    if partial:
        near, common = last.nearest(text[matched : matched + size], salt)
        if near is not None:
            pages.append(near)
            matched += common
            has_ended = common == len(near.tokens) < size
    num_shared, part = divmod(max(min(matched, len(text) - 1) - margin, 0), size)
    if not part or not partial:
        return Found(pages[:num_shared])
    source = pages[num_shared]
    return Found(pages[:num_shared], source, part, has_ended and source is pages[-1])


def take(pool: PagePool, found: Found, count: int, num_read: int, copies: bool) -> Taken | None:
    """`count` pages for a text of which this was found, and of which the first `num_read` are there to begin with; None
    where there are not enough, and nothing has changed then.

    What is shared is held, and copied to the device before, if it is on the host. Of a page of which a part is there,
    that part is copied to an own page if it `copies`. Where nobody needs the page, the sequence takes it out of the
    cache: if the text that ended in it goes on now, if there is no page left to copy to (a text that fits must not wait
    for its own remains), and if it does not copy. Otherwise the part is not used.
    """
    shared, source = found.shared, found.source
    on_host = [page for page in shared if page.is_on_host]
    short = count - len(shared) + len(on_host)
    room = pool.num_available - sum(not (page.holders or page.is_on_host) for page in shared)
    if short > room:
        return None
    for page in shared:
        (pool.pin if page.is_on_host else pool.hold)(page)
    copied: list[tuple[int, int]] = []
    uses = taken_over = False
    if source is not None:
        is_free = not (source.holders or source.children)
        can_copy = copies and (source.is_on_host or short <= room - (not source.holders))
        taken_over = is_free and (found.has_ended or not can_copy)
        uses = taken_over or can_copy
    if source is None or not uses:
        own, are_new = pool.take(short)
    elif source.is_on_host:
        pool.pin(source)
        own, are_new = pool.take(short)
        pool.copy_in(source, own[len(on_host)])
        if taken_over:
            pool.give_up(source)
        else:
            pool.unpin(source)
    elif taken_over:
        first = pool.forget(source)
        own, are_new = pool.take(short - 1)
        own.insert(len(on_host), first)
    else:
        pool.hold(source)  # so that it is not evicted for the page it is copied to
        own, are_new = pool.take(short)
        pool.release(source)
        copied = [(source.number, own[len(on_host)])]
        pool.moves.append(Move(MoveKind.COPY, *copied[0]))
    for page, number in zip(on_host, own, strict=False):
        pool.onboard(page, number)
    pages = [page.number for page in shared] + own[len(on_host) :]
    num_found = len(shared) + uses
    allocated = num_read - (count - short) - (len(own) - len(are_new))
    counts = PageCounts(allocated, sum(are_new[:allocated]), num_found, num_read - num_found)
    return Taken(pages, found.part if uses else 0, copied, counts)
