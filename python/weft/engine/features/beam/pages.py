"""Which pages of keys and values the beams of one request hold: full ones in common, the last one each its own.

A request gets all the pages that its beams may ever need when it starts, and gives them back when it ends; what beams
share, copy and drop meanwhile is counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


class BeamPages:
    """Pages of the beams of one request. `tables[b]` are beam b's, in the order of positions.

    Begins with one beam, which holds the first of `pages`, as many as `num_tokens` tokens of a prompt need. Its full
    pages may be shared with others: nothing is written to them.
    """

    def __init__(self, pages: Sequence[int], num_tokens: int, page_size: int) -> None:
        held = -(-num_tokens // page_size)
        assert len(set(pages)) == len(pages) >= held
        self._page_size = page_size
        self._num_tokens = num_tokens
        self._free = list(reversed(pages[held:]))
        self._holders = Counter(pages[:held])
        self.tables = [list(pages[:held])]

    @property
    def num_free(self) -> int:
        """Pages that no beam holds."""
        return len(self._free)

    def advance(self, parents: Sequence[int]) -> list[tuple[int, int]]:
        """Make beam b the continuation of what was beam `parents[b]`, with room for one more token.

        Returns pages to copy, (from, to), before that token is read. No page is both.
        """
        old, partial = self.tables, self._num_tokens % self._page_size != 0
        self.tables = [list(old[parent]) for parent in parents]
        for table in self.tables:
            self._holders.update(table)
        for table in old:
            self._drop(table)
        copies = []
        for table in self.tables:
            if not partial:
                table.append(self._take())
            elif self._holders[table[-1]] > 1:  # written next, by each of its holders: the last one keeps it
                copies.append((table[-1], self._take()))
                self._drop(table[-1:])
                table[-1] = copies[-1][1]
        self._num_tokens += 1
        return copies

    def _take(self) -> int:
        page = self._free.pop()
        self._holders[page] += 1
        return page

    def _drop(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]
                self._free.append(page)
