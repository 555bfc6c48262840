"""Pages that can be found again: a tree in which every path from the root spells the beginning of a text.

A page is looked up by its tokens, under the page before it, and never by a hash of them, so what is found is what was
asked for. Children are kept in the order of their tokens: of all children, one that shares the longest beginning with
some tokens stands beside the place where these would stand.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from weft.core.retention import DEFAULT_PRIORITY

Tokens = tuple[int, ...]
Key = tuple[int, Tokens]
"""What finds a page under its parent: the salt of the text, on its first page alone, and the page's tokens. A salt is a
number above 0, and 0 stands for none. What comes after a first page is found by its salt alone, too."""


class CachedPage:
    """Page `number`, which holds the keys and values of `tokens` after those of its parents: of the device, or of the
    host if it `is_on_host`.

    A page is full, or a text ended in it: such a page has no children, and nobody holds it. No page's tokens are the
    beginning of a sibling's.

    `holders` sequences read this very page; `doubles` are pages in which other sequences wrote the same. A sequence
    that holds a page, or a double of it, holds its parents too: of a page that nobody holds, nobody holds a child.
    Who is held is on the device, and so are the parents of what is there; `num_on_device` children are.
    `released` is a stamp of when its last holder gave it back, 0 while it is held; at `expires`, if its priority is for
    `duration_s` only, it has the default one. `hash` names it in events. `salt` is that of a text's first page.
    """

    __slots__ = (
        "children",
        "doubles",
        "duration_s",
        "expires",
        "hash",
        "holders",
        "is_on_host",
        "keys",
        "num_on_device",
        "number",
        "parent",
        "priority",
        "released",
        "salt",
        "tokens",
    )

    def __init__(self, number: int, tokens: Tokens, parent: CachedPage | None, salt: int = 0) -> None:
        self.number = number
        self.tokens = tokens
        self.salt = salt
        self.parent = parent
        self.keys: list[Key] = []
        self.children: list[CachedPage] = []
        self.holders = 0
        self.doubles: list[int] = []
        self.priority = DEFAULT_PRIORITY
        self.duration_s: float | None = None
        self.expires: float | None = None
        self.released = 0
        self.is_on_host = False
        self.num_on_device = 0
        self.hash = 0

    @property
    def is_leaf(self) -> bool:
        """Whether nothing is cached after it where it is: what is there could not be found without it."""
        return not self.children if self.is_on_host else not self.num_on_device

    def child(self, tokens: Tokens, salt: int = 0) -> CachedPage | None:
        """The child of exactly these tokens."""
        key = salt, tokens
        place = bisect_left(self.keys, key)
        return self.children[place] if place < len(self.keys) and self.keys[place] == key else None

    def nearest(self, tokens: Tokens, salt: int = 0) -> tuple[CachedPage | None, int]:
        """A child that begins like `tokens` for as long as any does, and for how many tokens; None and 0 if none
        does."""
        best, longest = None, 0
        place = bisect_left(self.keys, (salt, tokens))
        for near in range(max(place - 1, 0), min(place + 1, len(self.keys))):
            other_salt, others = self.keys[near]
            common = num_common(others, tokens) if other_salt == salt else 0
            if common > longest:
                best, longest = self.children[near], common
        return best, longest

    def beginning(self, tokens: Tokens, salt: int = 0) -> CachedPage | None:
        """The child whose tokens `tokens` begin with, and go on after. There is one at most, and it stands right before
        the place where `tokens` would stand."""
        place = bisect_left(self.keys, (salt, tokens))
        if not place:
            return None
        before, shorter = self.keys[place - 1]
        return self.children[place - 1] if before == salt and shorter == tokens[: len(shorter)] else None

    def add(self, number: int, tokens: Tokens, salt: int = 0) -> CachedPage:
        """A new child, on the device."""
        page = CachedPage(number, tokens, self, salt)
        place = bisect_left(self.keys, (salt, tokens))
        self.keys.insert(place, (salt, tokens))
        self.children.insert(place, page)
        self.num_on_device += 1
        return page

    def remove(self, page: CachedPage) -> None:
        """Forget a child."""
        place = bisect_left(self.keys, (page.salt, page.tokens))
        assert self.children[place] is page
        del self.keys[place], self.children[place]
        self.num_on_device -= not page.is_on_host

    def descendants(self) -> Iterator[CachedPage]:
        """All pages below, parents first."""
        below = list(self.children)
        while below:
            page = below.pop()
            below.extend(page.children)
            yield page


def num_common(some: Tokens, others: Tokens) -> int:
    """How many tokens both begin with."""
    common = 0
    for mine, other in zip(some, others, strict=False):
        if mine != other:
            break
        common += 1
    return common
