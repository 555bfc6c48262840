"""The prefix cache: a tree of pages, in which each path from the root spells the beginning of a text.

A page is looked up by its tokens, under the page before it, never by a hash of them: a match is always exact.
Children are sorted by their tokens. So the child with the longest common prefix with some tokens is next to the place
where these would be inserted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from weft.core.retention import DEFAULT_PRIORITY

Tokens = tuple[int, ...]
Key = tuple[int, Tokens]
"""Identifies a page under its parent: the salt of the text, and the page's tokens. The salt is a number above 0, or 0
for none. Only a text's first page has it, and it holds for all pages after that one."""


class CachedPage:
    """Page `number`, on the device or if `is_on_host` on the host. It holds the keys and values of `tokens`, after
    those of its ancestors.

    A page is full or partly filled. A partly filled one ends a text: it has no children and no holders. No page's
    tokens are a prefix of a sibling's.

    `holders` sequences read this page; `duplicates` are pages to which other sequences wrote the same content. A
    sequence that holds a page, or a duplicate of it, holds its ancestors too. So an unheld page has no held children.
    Held pages are on the device, and so is the parent of every page on the device; `num_on_device` counts such
    children.

    `released` is the stamp of the last release, 0 while the page is held. Its priority falls to the default at the time
    `expires`, `duration_s` after the release (None: never). `hash` names the page in events.
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
        self.duplicates: list[int] = []
        self.priority = DEFAULT_PRIORITY
        self.duration_s: float | None = None
        self.expires: float | None = None
        self.released = 0
        self.is_on_host = False
        self.num_on_device = 0
        self.hash = 0

    @property
    def is_leaf(self) -> bool:
        """Whether no page after it is cached in its tier, so that it may be evicted."""
        return not self.children if self.is_on_host else not self.num_on_device

    def child(self, tokens: Tokens, salt: int = 0) -> CachedPage | None:
        """The child of exactly these tokens, if there is one."""
        key = salt, tokens
        index = bisect_left(self.keys, key)
        return self.children[index] if index < len(self.keys) and self.keys[index] == key else None

    def nearest(self, tokens: Tokens, salt: int = 0) -> tuple[CachedPage | None, int]:
        """The child with the longest common prefix with `tokens`, and the length of this prefix; None and 0 if no child
        has one."""
        best, longest = None, 0
        index = bisect_left(self.keys, (salt, tokens))
        for neighbor in range(max(index - 1, 0), min(index + 1, len(self.keys))):
            other_salt, others = self.keys[neighbor]
            length = num_common(others, tokens) if other_salt == salt else 0
            if length > longest:
                best, longest = self.children[neighbor], length
        return best, longest

    def beginning(self, tokens: Tokens, salt: int = 0) -> CachedPage | None:
        """The child whose tokens are a proper prefix of `tokens`; at most one is."""
        index = bisect_left(self.keys, (salt, tokens))
        if not index:
            return None
        other_salt, shorter = self.keys[index - 1]  # a prefix sorts right before the longer text
        return self.children[index - 1] if other_salt == salt and shorter == tokens[: len(shorter)] else None

    def add(self, number: int, tokens: Tokens, salt: int = 0) -> CachedPage:
        """Add a child on the device."""
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
        """All pages after it, parents before children."""
        pending = list(self.children)
        while pending:
            page = pending.pop()
            pending.extend(page.children)
            yield page


def num_common(first: Tokens, second: Tokens) -> int:
    """The length of the longest common prefix."""
    length = 0
    for token, other in zip(first, second, strict=False):
        if token != other:
            break
        length += 1
    return length
