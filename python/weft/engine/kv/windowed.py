"""The pages of layers with attention windows, in models whose other layers attend to the whole text.

In such a model a page of a text is two pages on the device: one in the layers without windows (`pool.py`), and one in
the layers with windows, here called windowed. Both are numbered separately. A text needs windowed pages only for the
positions that its next queries see. So a sequence releases those behind its windows while it grows.

A page of the prefix tree has a windowed page, or has lost it (number 0). It is held by sequences that need it. Without
holders it is cached, and may be evicted while the page itself stays in the tree. A text can begin with a cached prefix
only if the windowed pages are there that the query after the prefix sees.

Cached windowed pages are evicted in the order of their release, but first those that are of little use: a prefix that
ends in the middle of a prompt or of an answer needs them. The pages before the end of a prompt or of a text, and those
that a cached prefix needed before, are evicted last.

Sequences never wait for a windowed page while they run. On admission each claims as many pages as it may hold at once,
and the claims of all sequences are at most the number of pages. Cached pages can always be evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.engine.kv.attention_span import AttentionSpan
from weft.engine.kv.prefix_tree import CachedPage


@dataclass(eq=False, slots=True)
class HeldWindow:
    """The windowed pages of a sequence.

    pages: their numbers in the order of positions. 0: released, or never needed.
    start: the pages from the sinks' last one to this one are released.
    claimed: the number of pages that the sequence may hold.
    num_useful: cached pages before this one are evicted last.
    is_read: whether the prompt is read, so that pages were released behind the window.
    """

    pages: list[int]
    start: int
    claimed: int
    num_useful: int
    is_read: bool = False


class WindowedPages:
    """The windowed pages 1 to `num_pages` - 1. `span` are the positions that the layers with windows see.

    free: the numbers of pages without content.
    cached, passed: the pages of the tree whose windowed pages no sequence holds, the one released first in front.
        Those in `passed` are evicted before those in `cached`.
    claimed: the number of pages that the sequences may hold.
    """

    def __init__(self, num_pages: int, page_size: int, span: AttentionSpan, positions_ahead: int) -> None:
        self.num_pages, self.page_size, self.span = num_pages, page_size, span
        self.positions_ahead = positions_ahead
        self.free = list(range(num_pages - 1, 0, -1))
        self.cached: dict[CachedPage, None] = {}
        self.passed: dict[CachedPage, None] = {}
        self.claimed = 0
        self._num_decoding = pages_while_decoding(span, page_size, positions_ahead)

    @property
    def num_available(self) -> int:
        """The number of pages that no sequence holds: free and cached pages."""
        return len(self.free) + len(self.cached) + len(self.passed)

    def num_usable(self, pages: Sequence[CachedPage], position: int) -> int:
        """How many of a text's first `pages` the text can begin with. The last page is cached up to `position`, the
        others are full. If the result is less than all pages, the text begins at the end of the last one."""
        missing = [index for index, page in enumerate(pages) if not page.windowed]
        for count in range(len(pages), 0, -1):
            while missing and missing[-1] >= count:
                missing.pop()
            if not missing:
                return count
            hidden = self.span.hidden(min(position, count * self.page_size), self.page_size)
            if all(index in hidden for index in (missing[0], missing[-1])):
                return count
        return 0

    def can_begin(self, num_reused: int, num_tokens: int) -> bool:
        """Whether a text of `num_tokens` tokens can begin, of which the first `num_reused` are cached."""
        return self.claimed + self._claim(num_reused, num_tokens) <= self.num_pages - 1

    def begin(
        self,
        chain: Sequence[CachedPage],
        num_reused: int,
        num_tokens: int,
        source: CachedPage | None,
        taken_over: int,
    ) -> tuple[HeldWindow, tuple[int, int] | None]:
        """Take the windowed pages of a new sequence: those that it sees of its cached pages, which are `chain`, and new
        ones up to `num_tokens` and the positions ahead. The first new page begins with the content of `source`, or is
        `taken_over`. Also returns the copy to make for it, (from, to), if any."""
        hidden = self.span.hidden(num_reused, self.page_size)
        pages = [0 if index in hidden else page.windowed for index, page in enumerate(chain)]
        window = HeldWindow(pages, hidden.stop, self._claim(num_reused, num_tokens), len(chain))
        self.claimed += window.claimed
        for page, number in zip(chain, pages, strict=True):
            if number:
                self._hold(page)
        if taken_over:
            pages.append(taken_over)
        if source is not None and source.windowed:
            self._hold(source)  # it must not be evicted to get its own copy
        self.grow(window, num_tokens + self.positions_ahead)
        if source is None or not source.windowed:
            return window, None
        self._release(source, is_useful=True)
        return window, (source.windowed, pages[len(chain)])

    def grow(self, window: HeldWindow, num_positions: int) -> None:
        """Append pages until there is room for `num_positions` positions."""
        for _ in range(-(-num_positions // self.page_size) - len(window.pages)):
            if not self.free:
                cached = self.passed or self.cached
                page = next(iter(cached))
                del cached[page]
                self.free.append(page.windowed)
                page.windowed = 0
            window.pages.append(self.free.pop())

    def release_hidden(self, window: HeldWindow, chain: Sequence[CachedPage], position: int) -> None:
        """Release the pages of a sequence that no query at `position` or later sees."""
        hidden = self.span.hidden(position, self.page_size)
        # The same prompt begins at its last page's end, or a page earlier with a drafter's margin. Its window there is
        # in the last pages of the chain.
        first_useful = len(chain)
        if not window.is_read:
            first_useful = self.span.hidden(max(len(chain) - 1, 0) * self.page_size, self.page_size).stop
        for index in range(max(hidden.start, window.start), hidden.stop):
            is_useful = index < window.num_useful or first_useful <= index < len(chain)
            self._release_at(window, chain, index, is_useful)
        window.start = max(window.start, hidden.stop)
        if not window.is_read:
            window.is_read, window.num_useful = True, len(chain)
        claim = max(self._num_decoding, len(window.pages) - len(hidden))
        if claim < window.claimed:
            self.claimed -= window.claimed - claim
            window.claimed = claim

    def end(self, window: HeldWindow, chain: Sequence[CachedPage]) -> None:
        """Release all pages of a sequence. `chain` are its pages in the tree."""
        for index in range(len(window.pages)):
            self._release_at(window, chain, index, is_useful=True)
        self.claimed -= window.claimed

    def store(self, page: CachedPage, number: int) -> None:
        """Note that a sequence stores a page whose windowed page has `number`. It becomes the page's own, unless the
        page has one: then it stays the sequence's alone."""
        if number and not page.windowed:
            page.windowed, page.window_holders = number, 1

    def take_over(self, page: CachedPage) -> int:
        """Take the windowed page of an unheld page, which leaves the tree. Returns its number, or 0."""
        self._uncache(page)
        number, page.windowed = page.windowed, 0
        return number

    def drop(self, page: CachedPage) -> None:
        """Free the windowed page of a page that has left the tree, unless sequences hold it."""
        if page.windowed and not page.window_holders:
            self._uncache(page)
            self.free.append(page.windowed)
            page.windowed = 0

    def _uncache(self, page: CachedPage) -> None:
        self.cached.pop(page, None)
        self.passed.pop(page, None)

    def _claim(self, num_reused: int, num_tokens: int) -> int:
        num_pages = -(-(num_tokens + self.positions_ahead) // self.page_size)
        return max(num_pages - len(self.span.hidden(num_reused, self.page_size)), self._num_decoding)

    def _hold(self, page: CachedPage) -> None:
        if not page.window_holders:
            self._uncache(page)
        page.window_holders += 1

    def _release(self, page: CachedPage, is_useful: bool) -> None:
        page.window_holders -= 1
        if page.window_holders:
            return
        if page.parent is not None:
            (self.cached if is_useful else self.passed)[page] = None
        else:  # it has left the tree
            self.free.append(page.windowed)
            page.windowed = 0

    def _release_at(
        self, window: HeldWindow, chain: Sequence[CachedPage], index: int, is_useful: bool
    ) -> None:
        number, window.pages[index] = window.pages[index], 0
        if number and index < len(chain) and chain[index].windowed == number:
            self._release(chain[index], is_useful)
        elif number:
            self.free.append(number)


def pages_while_decoding(span: AttentionSpan, page_size: int, positions_ahead: int) -> int:
    """The most windowed pages that a sequence holds while it decodes. It releases pages once for each page that it
    fills, and has pages for the positions ahead."""
    num_positions = span.reach + page_size + 2 * positions_ahead
    return -(-span.sinks // page_size) + -(-num_positions // page_size) + 1
