"""The prefix tree: a tree of pages, in which each path from the root spells a prefix of a text.

Lookups compare tokens, never their hashes, so a match is always exact. Children are sorted by their tokens. A binary
search therefore finds the child that shares the longest prefix with given tokens: it is next to the position at which
these tokens would be inserted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from weft.core.retention import DEFAULT_PRIORITY

Tokens = tuple[int, ...]
Key = tuple[int, Tokens]
"""Identifies a page below its parent, by the text's salt (0: none) and the page's tokens. Only a text's first page has
the salt, because all other pages are found through the first."""

MAX_SIMILAR = 8
"""The number of children on each side of a text's place that `CachedPage.similar` returns."""


class CachedPage:
    """A node of the tree: page `number` on the device or, with `is_on_host`, on the host. It holds the keys and values
    of `tokens`, which follow the tokens of its ancestors.

    A page is full or partly filled. A partly filled page is the end of a text: it has no children and no holders. The
    tokens of a page are never a prefix of a sibling's tokens.

    holders: the number of sequences that hold this page. A sequence that holds a page or a duplicate of it also holds
        all its ancestors, so an unheld page has no held children. Held pages are on the device.
    duplicates: the numbers of pages to which other sequences wrote the same content.
    num_on_device: the number of children on the device. The parent of a page on the device is on the device.
    released: the stamp of the last release; 0 while the page is held.
    expires: the time at which the priority returns to the default, `duration_s` after the release (None: never).
    hash: identifies the page in events.
    snapshots: the states that were kept after tokens of this page, the one after the most tokens first.
    windowed: the number of its page in the layers with windows, if these have pages of their own (`windowed.py`); 0:
        none. `window_holders` sequences hold that page.
    """

    __slots__ = (
        "children",
        "duplicates",
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
        "snapshots",
        "tokens",
        "window_holders",
        "windowed",
    )

    def __init__(self, number: int, tokens: Tokens, parent: CachedPage | None, salt: int = 0) -> None:
        self.number = number
        self.tokens = tokens
        self.salt = salt
        self.parent = parent
        self.keys: list[Key] = []
        self.children: list[CachedPage] = []
        self.holders = 0
        self.duplicates: list[int] = []
        self.priority = DEFAULT_PRIORITY
        self.duration_s: float | None = None
        self.expires: float | None = None
        self.released = 0
        self.is_on_host = False
        self.num_on_device = 0
        self.hash = 0
        self.snapshots: tuple[Snapshot, ...] = ()
        self.windowed = self.window_holders = 0

    @property
    def is_leaf(self) -> bool:
        """Whether the page has no children in its tier. Only leaves may be evicted."""
        return not self.children if self.is_on_host else not self.num_on_device

    def child(self, tokens: Tokens, salt: int = 0) -> CachedPage | None:
        """The child with exactly these tokens, or None."""
        key = salt, tokens
        index = bisect_left(self.keys, key)
        return self.children[index] if index < len(self.keys) and self.keys[index] == key else None

    def nearest(self, tokens: Tokens, salt: int = 0) -> tuple[CachedPage | None, int]:
        """The child that shares the longest prefix with `tokens`, and the prefix's length. (None, 0) if no child starts
        with the same token."""
        best, longest = None, 0
        index = bisect_left(self.keys, (salt, tokens))
        for neighbor in range(max(index - 1, 0), min(index + 1, len(self.keys))):
            other_salt, others = self.keys[neighbor]
            length = num_common(others, tokens) if other_salt == salt else 0
            if length > longest:
                best, longest = self.children[neighbor], length
        return best, longest

    def similar(self, tokens: Tokens, salt: int = 0) -> Iterator[tuple[CachedPage, int]]:
        """Iterate over children that begin with the same token as `tokens`, each with the length of the common prefix.
        They are the nearest ones, at most `MAX_SIMILAR` on each side of the place of `tokens`."""
        index = bisect_left(self.keys, (salt, tokens))
        before = range(index - 1, max(index - 1 - MAX_SIMILAR, -1), -1)
        for places in (before, range(index, min(index + MAX_SIMILAR, len(self.keys)))):
            for place in places:
                other_salt, others = self.keys[place]
                length = num_common(others, tokens) if other_salt == salt else 0
                if not length:
                    break
                yield self.children[place], length

    def beginning(self, tokens: Tokens, salt: int = 0) -> CachedPage | None:
        """The child whose tokens are a proper prefix of `tokens`, or None. There is at most one."""
        index = bisect_left(self.keys, (salt, tokens))
        if not index:
            return None
        other_salt, shorter = self.keys[index - 1]  # a prefix sorts right before the longer text
        return self.children[index - 1] if other_salt == salt and shorter == tokens[: len(shorter)] else None

    def add(self, number: int, tokens: Tokens, salt: int = 0) -> CachedPage:
        """Add device page `number` as a child."""
        page = CachedPage(number, tokens, self, salt)
        index = bisect_left(self.keys, (salt, tokens))
        self.keys.insert(index, (salt, tokens))
        self.children.insert(index, page)
        self.num_on_device += 1
        return page

    def remove(self, page: CachedPage) -> None:
        """Remove a child."""
        index = bisect_left(self.keys, (page.salt, page.tokens))
        assert self.children[index] is page
        del self.keys[index], self.children[index]
        self.num_on_device -= not page.is_on_host

    def descendants(self) -> Iterator[CachedPage]:
        """Iterate over all descendants, parents before children."""
        pending = list(self.children)
        while pending:
            page = pending.pop()
            pending.extend(page.children)
            yield page


class Snapshot:
    """A kept state of a model's recurrent layers (`snapshots.py`). The state in `row` is the one after the first
    `offset` tokens of `page`, and all tokens before the page.

    next_token: the token that followed when the state was kept; None if it is not known. A drafter's entries before the
        snapshot depend on it.
    """

    __slots__ = ("next_token", "offset", "page", "row")

    def __init__(self, row: int, page: CachedPage, offset: int, next_token: int | None) -> None:
        self.row, self.page, self.offset, self.next_token = row, page, offset, next_token


def num_common(first: Tokens, second: Tokens) -> int:
    """The length of the longest common prefix of two pages' tokens."""
    length = 0
    for token, other in zip(first, second, strict=False):
        if token != other:
            break
        length += 1
    return length
