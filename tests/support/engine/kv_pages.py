"""Helpers for tests of a `KvManager`: begin and end texts, and count the cached tokens of a text."""

from __future__ import annotations

from weft.core.retention import Retention, RetentionRange
from weft.engine.kv.cache import KvManager, KvSequence, match_prefix
from weft.engine.kv.prefix_tree import CachedPage

SIZE = 4
TEXT = list(range(100, 114))  # three full pages and two tokens


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def began(
    manager: KvManager, tokens: list[int], num_positions: int | None = None, **how: object
) -> KvSequence:
    sequence = manager.begin(tokens, num_positions or len(tokens), **how)  # type: ignore[arg-type]
    assert sequence is not None
    manager.check()
    return sequence


def leave(manager: KvManager, tokens: list[int], retention: Retention | None = None) -> None:
    """Begin a text, store all of its tokens, and end it, so that it is cached."""
    sequence = began(manager, tokens, retention=retention)
    manager.store(sequence, tokens, len(tokens))
    manager.end(sequence)
    manager.check()


def root_of(manager: KvManager) -> CachedPage:
    return manager._pool.root


def cached_texts(manager: KvManager) -> dict[CachedPage, tuple[int, ...]]:
    """Each page of the tree, with the text up to its end."""
    root = root_of(manager)
    texts: dict[CachedPage | None, tuple[int, ...]] = {root: ()}
    for page in root.descendants():
        texts[page] = texts[page.parent] + page.tokens
    return {page: text for page, text in texts.items() if page is not None and page is not root}


def num_found(manager: KvManager, tokens: list[int]) -> int:
    """The number of tokens of a text that are cached. The lookup changes nothing."""
    match = match_prefix(root_of(manager), SIZE, [*tokens, -1], 0, 0, True)
    return len(match.full_pages) * SIZE + match.num_partial


def asking(priority: int, seconds: float | None = None) -> Retention:
    return Retention((RetentionRange(0, None, priority, seconds),))
