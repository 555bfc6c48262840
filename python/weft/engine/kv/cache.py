"""Pages of keys and values: who holds which, and what is kept of those who are done.

Page 0 belongs to nobody: padding rows and positions beyond a sequence's pages point at it. All others are free, held by
sequences, or cached: held by nobody, with content that can be found again, until somebody needs the page.

A page can be found once all its positions are valid, and is not written from then on: a sequence writes only positions
from `num_reused` on, in pages of its own. What can be found is held in common. Where two sequences write the same text
at the same time, the page stored first is found, and the other's stands ready to replace it: it does when the first
one's last holder goes, so that nobody keeps a page that nobody reads.

All of this is the host's view. The device follows in stream order: a page that is given back and taken by another may
still be read or written by work that was launched before, never after. For the same reason a source of `copies` may be
given to another at once, as long as the copies are launched before what the other writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from weft.engine.kv.eviction import EvictionOrder
from weft.engine.kv.prefix_tree import CachedPage
from weft.engine.kv.retention import Retention, RetentionRange
from weft.engine.stats import KvUsage

__all__ = ["KvManager", "KvSequence", "Retention", "RetentionRange"]


@dataclass(eq=False, slots=True)
class KvSequence:
    """What one request holds. `pages` are those of its positions, in order.

    The first `num_reused` positions are there already: reading starts after them, after `copies` were made on the
    device, each a page and the own page that it is copied to.
    """

    pages: list[int]
    num_reused: int
    copies: list[tuple[int, int]]
    num_prompt: int
    retention: Retention | None
    chain: list[CachedPage] = field(repr=False)  # of `pages`, the first ones: those that can be found
    salt: tuple[int, ...] = ()


class KvManager:
    """Pages 1 to `num_pages` - 1, each of `page_size` positions.

    `reuse`: whether anything is kept to be found again. `partial_reuse`: whether also a part of a page is used, by a
    copy of it; with `copy_on_partial_reuse` off, instead by taking the page itself out of the cache, where nobody
    holds it and nothing is cached after it, or else not at all. `clock` gives seconds.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        *,
        reuse: bool = True,
        partial_reuse: bool = True,
        copy_on_partial_reuse: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self._reuse = reuse
        self._partial_reuse = partial_reuse
        self._copies = copy_on_partial_reuse
        self._free = list(range(num_pages - 1, 0, -1))
        self._root = CachedPage(0, (), None)
        self._root.holders = 1  # nobody's page, never given up
        self._order = EvictionOrder(num_pages, clock)
        self._sequences: set[KvSequence] = set()
        self._num_cached = 0
        self._num_allocated = self._num_reused = self._num_missed = 0

    @property
    def num_available(self) -> int:
        """How many pages can be handed out: free ones and those that are only cached."""
        return len(self._free) + self._num_cached

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
        looked = reuse and self._reuse
        salted = _salted(salt)
        found, num_reused = self._find(tokens, margin, salted) if looked else ([], 0)
        num_shared, part = divmod(num_reused, self.page_size)
        shared = found[:num_shared]
        num_own = self.pages_needed(num_positions) - num_shared
        room = self.num_available - sum(page.holders == 0 for page in shared)
        if num_own > room:
            return None
        for page in shared:
            self._hold(page)
        source = found[num_shared] if part else None
        if source is not None and self._copies and num_own <= room - (source.holders == 0):
            self._hold(source)  # so that it is not evicted for the page it is copied to
            own = self._take(num_own)
            self._release(source)
            copies = [(source.number, own[0])]
        elif source is not None and source.holders == 0 and not source.children:
            # also where there is no page left to copy to: a text that fits must not wait for its own remains
            own = [self._take_over(source), *self._take(num_own - 1)]
            copies = []
        else:
            own, copies, part = self._take(num_own), [], 0
        prompt = len(tokens) if num_prompt is None else num_prompt
        pages = [page.number for page in shared] + own
        num_reused = num_shared * self.page_size + part
        sequence = KvSequence(pages, num_reused, copies, prompt, retention, shared, salted)
        self._sequences.add(sequence)
        for place in range(num_shared if retention is not None else 0):
            self._retain(sequence, place)
        if looked:
            num_found = self.pages_needed(num_reused)
            self._num_reused += num_found
            self._num_missed += max(len(tokens) // self.page_size - num_found, 0)
        return sequence

    def grow(self, sequence: KvSequence, num_positions: int) -> bool:
        """Append pages, so that there are enough for `num_positions`; False if there are not; nothing is taken then."""
        count = self.pages_needed(num_positions) - len(sequence.pages)
        if count <= 0:
            return True
        if count > self.num_available:
            return False
        sequence.pages += self._take(count)
        return True

    def store(self, sequence: KvSequence, tokens: Sequence[int], num_valid: int) -> None:
        """Let others find the pages that are full: the first `num_valid` positions hold `tokens`' keys and values,
        now or once what is launched is done, and are not written again. Costs nothing until another page is full."""
        size, chain = self.page_size, sequence.chain
        if not self._reuse or num_valid < (len(chain) + 1) * size:
            return
        assert sequence in self._sequences and num_valid <= min(len(tokens), len(sequence.pages) * size)
        for place in range(len(chain), num_valid // size):
            parent = chain[-1] if chain else self._root
            text = tuple(tokens[place * size : (place + 1) * size])
            if not place:
                text = sequence.salt + text
            chain.append(self._publish(parent, text, sequence.pages[place]))
            self._retain(sequence, place)

    def end(self, sequence: KvSequence) -> None:
        """Give everything back. Once for each sequence. What can be found stays cached until the page is needed."""
        assert sequence in self._sequences, "it has ended already"
        self._sequences.remove(sequence)
        num_found = len(sequence.chain)
        self._free.extend(reversed(sequence.pages[num_found:]))
        for page, own in zip(sequence.chain, sequence.pages, strict=False):
            if page.number == own:
                self._release(page)
            else:
                page.doubles.remove(own)
                self._free.append(own)
        sequence.pages, sequence.chain = [], []

    def usage(self) -> KvUsage:
        """How many pages are held, free and cached now, and what was found since the manager was made."""
        return KvUsage(
            page_size=self.page_size,
            max_pages=self.num_pages - 1,
            free_pages=self.num_available,
            cached_pages=self._num_cached,
            used_pages=self.num_pages - 1 - self.num_available,
            allocated_pages=self._num_allocated,
            reused_pages=self._num_reused,
            missed_pages=self._num_missed,
        )

    def check(self) -> None:
        """Assert all that must hold between calls: every page is there once, and held by whom it should be. Looks at
        every page."""
        own: list[int] = []
        holders: dict[CachedPage, int] = {}
        doubles: dict[CachedPage, list[int]] = {}
        for sequence in self._sequences:
            assert len(sequence.chain) <= len(sequence.pages)
            parent = self._root
            for page, number in zip(sequence.chain, sequence.pages, strict=False):
                assert page.parent is parent and parent.child(page.tokens) is page, (
                    "a held page can't be found"
                )
                parent = page
                if page.number == number:
                    holders[page] = holders.get(page, 0) + 1
                else:
                    doubles.setdefault(page, []).append(number)
            own += sequence.pages[len(sequence.chain) :]
        cached = list(self._root.descendants())
        for page in cached:
            assert page.holders == holders.pop(page, 0), f"page {page.number} has other holders"
            assert sorted(page.doubles) == sorted(doubles.pop(page, []))
            assert not page.doubles or page.holders, "a double stands idle"
            assert (page.released == 0) == (page.holders > 0)
            is_salted = page.parent is self._root and page.tokens[0] < 0
            assert len(page.tokens) == self.page_size + is_salted and page.keys == sorted(page.keys)
            assert page.holders or not any(child.holders for child in page.children), (
                "held without its parent"
            )
            own += [page.number, *page.doubles]
        assert not holders and not doubles, "a sequence holds what is no longer in the tree"
        assert sorted(own + self._free) == list(range(1, self.num_pages)), "a page is lost or is there twice"
        assert self._num_cached == sum(page.holders == 0 for page in cached)

    def _find(
        self, tokens: Sequence[int], margin: int, salt: tuple[int, ...] = ()
    ) -> tuple[list[CachedPage], int]:
        """The cached pages that `tokens` begin with, perhaps one more of which a part, and how many of the positions
        to reuse."""
        text, size = tuple(tokens), self.page_size
        found: list[CachedPage] = []
        page: CachedPage | None = self._root
        last = self._root
        for start in range(0, len(text) - size + 1, size):
            page = last.child(salt + text[start : start + size])
            if page is None:
                break
            found.append(page)
            last, salt = page, ()
        matched = len(found) * size
        if self._partial_reuse:
            near, common = last.nearest(salt + text[matched : matched + size])
            if near is not None and common > len(salt):
                found.append(near)
                matched += common - len(salt)
        num_reused = max(min(matched, len(text) - 1) - margin, 0)
        return found, num_reused if self._partial_reuse else num_reused // size * size

    def _publish(self, parent: CachedPage, text: tuple[int, ...], own: int) -> CachedPage:
        """Hold the child of these tokens, which the sequence has written in its page `own`."""
        page = parent.child(text)
        if page is None:
            page = parent.add(own, text)
            page.holders = 1
        elif page.holders:
            page.doubles.append(own)
        else:
            self._hold(page)
            self._replace(page, own)
        return page

    def _retain(self, sequence: KvSequence, place: int) -> None:
        """Let a held page have what the sequence asks for it: the last one to ask decides."""
        if sequence.retention is not None:
            asked = sequence.retention.at(place * self.page_size, sequence.num_prompt)
            if asked is not None:
                sequence.chain[place].priority, sequence.chain[place].duration_s = asked

    def _hold(self, page: CachedPage) -> None:
        if page.holders == 0:
            self._num_cached -= 1
            self._order.remove(page)
        page.holders += 1

    def _release(self, page: CachedPage) -> None:
        page.holders -= 1
        if page.holders == 0 and page.doubles:
            self._replace(page, page.doubles.pop())
            page.holders = 1
        elif page.holders == 0:
            self._num_cached += 1
            self._order.add(page)

    def _replace(self, page: CachedPage, number: int) -> None:
        """Another page, of the same content, is found from now on."""
        self._free.append(page.number)
        page.number = number

    def _take(self, count: int) -> list[int]:
        """`count` pages of those available; the caller knows that there are as many."""
        while len(self._free) < count:
            page = self._order.pop()
            self._free.append(self._forget(page))
        self._num_allocated += count
        split = len(self._free) - count
        taken = self._free[split:]
        del self._free[split:]
        taken.reverse()
        return taken

    def _take_over(self, page: CachedPage) -> int:
        """Make an unheld leaf somebody's own."""
        self._order.remove(page)
        return self._forget(page)

    def _forget(self, page: CachedPage) -> int:
        """Take an unheld leaf out of the tree."""
        self._num_cached -= 1
        parent = page.parent
        assert parent is not None
        parent.remove(page)
        if parent.holders == 0:
            self._order.offer(parent)
        return page.number


def _salted(salt: str | None) -> tuple[int, ...]:
    """What goes before the tokens of a salted text: a number of its own, which is no token. Each page keeps its tokens
    and compares them, so that it has one length however long the salt is."""
    return () if salt is None else (-1 - int.from_bytes(sha256(salt.encode()).digest()),)
