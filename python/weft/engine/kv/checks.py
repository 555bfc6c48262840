"""Checks the invariants of all pages and snapshots, which hold between calls of the manager."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.engine.kv.pool import PagePool
from weft.engine.kv.prefix_tree import CachedPage
from weft.engine.kv.snapshots import Snapshots
from weft.engine.kv.windowed import HeldWindow, WindowedPages

Held = tuple[Sequence[CachedPage], Sequence[int]]
"""A sequence's pages in the tree (`chain`), and the numbers of all its pages."""


def check_pages(pool: PagePool, sequences: Iterable[Held], size: int, counts: tuple[int, int]) -> None:
    """Assert that each page of both tiers exists exactly once and has the right holders. `counts` holds the number of
    pages on the device, including page 0, and on the host."""
    seen: list[int] = []
    holders: dict[CachedPage, int] = {}
    duplicates: dict[CachedPage, list[int]] = {}
    for chain, pages in sequences:
        assert len(chain) <= len(pages)
        parent = pool.root
        for page, number in zip(chain, pages, strict=False):
            is_found = page.parent is parent and parent.child(page.tokens, page.salt) is page
            assert is_found or page.parent is None, "a held page is not in the tree"
            assert not page.is_on_host, "a held page is on the host"
            parent = page
            if page.number == number:
                holders[page] = holders.get(page, 0) + 1
            else:
                duplicates.setdefault(page, []).append(number)
        assert 0 not in pages[: len(chain)]
        seen += filter(None, pages[len(chain) :])
    lost = [page for page in {*holders, *duplicates} if page.parent is None]
    for page in lost:
        assert page.holders == holders.pop(page, 0)
        assert sorted(page.duplicates) == sorted(duplicates.pop(page, []))
        seen += [page.number, *page.duplicates]
    cached = list(pool.root.descendants())
    for page in cached:
        assert page.holders == holders.pop(page, 0), f"page {page.number} has other holders"
        assert sorted(page.duplicates) == sorted(duplicates.pop(page, []))
        assert not page.duplicates or page.holders, "an unheld page has a duplicate"
        _check_page(page, pool.root, size)
        seen += [] if page.is_on_host else [page.number, *page.duplicates]
    assert not holders and not duplicates, "a sequence holds a page that is not in the tree"
    num_pages, num_host_pages = counts
    assert sorted(seen + pool.free) == list(range(1, num_pages)), "a page is missing or exists twice"
    on_host = [page.number for page in cached if page.is_on_host]
    assert sorted(on_host + pool.host_free) == list(range(num_host_pages)), "a page of the host is missing"
    assert pool.num_on_host == len(on_host)
    assert pool.num_cached == sum(not (page.holders or page.is_on_host) for page in cached)


def check_snapshots(snapshots: Snapshots, root: CachedPage, pending: Sequence[int]) -> None:
    """Assert that each row is free, pending or attached to one page of the tree. `pending` are the rows of
    sequences."""
    in_tree = [snapshot for page in root.descendants() for snapshot in page.snapshots]
    assert set(in_tree) == set(snapshots.attached), "a snapshot is not in the tree"
    rows = [*snapshots.free, *pending, *(snapshot.row for snapshot in in_tree)]
    assert sorted(rows) == list(range(snapshots.num_rows)), "a row is missing or exists twice"
    for page in root.descendants():
        offsets = [snapshot.offset for snapshot in page.snapshots]
        assert all(snapshot.page is page for snapshot in page.snapshots)
        assert offsets == sorted({*offsets}, reverse=True)
        assert all(0 < offset <= len(page.tokens) for offset in offsets)


def check_windowed(
    windowed: WindowedPages, root: CachedPage, sequences: Iterable[tuple[Sequence[CachedPage], HeldWindow]]
) -> None:
    """Assert that each windowed page exists once and has the right holders, and that claims are kept."""
    in_tree = {page for page in root.descendants() if page.windowed}
    holders: dict[CachedPage, int] = {}
    numbers: list[int] = []
    claimed = 0
    for chain, window in sequences:
        held = [(index, number) for index, number in enumerate(window.pages) if number]
        assert len(held) <= window.claimed, "a sequence holds more windowed pages than it claimed"
        claimed += window.claimed
        for index, number in held:
            if index < len(chain) and chain[index].windowed == number:
                holders[chain[index]] = holders.get(chain[index], 0) + 1
            else:
                numbers.append(number)
    assert claimed == windowed.claimed < windowed.num_pages
    numbers += [page.windowed for page in {*in_tree, *holders}]
    assert sorted(numbers + windowed.free) == list(range(1, windowed.num_pages)), (
        "a windowed page is missing or exists twice"
    )
    assert all(page.window_holders == holders.get(page, 0) for page in in_tree)
    assert {page for page in in_tree if not page.window_holders} == {*windowed.cached, *windowed.passed}
    assert not set(windowed.cached) & set(windowed.passed)
    assert all(page.parent is None for page in set(holders) - in_tree)


def _check_page(page: CachedPage, root: CachedPage, size: int) -> None:
    """Assert the invariants of one page of the tree and its children."""
    parent = page.parent
    assert parent is not None
    assert (page.released == 0) == (page.holders > 0)
    length = len(page.tokens)
    assert parent is root or not page.salt
    assert 0 < length <= size and page.keys == sorted(page.keys)
    assert length == size or not (page.holders or page.children), "a partly filled page is held or continued"
    assert page.num_on_device == sum(not child.is_on_host for child in page.children)
    assert not page.is_on_host or not page.num_on_device, "a page on the device follows one on the host"
    assert page.holders or not any(child.holders for child in page.children), (
        "a page is held without its parent"
    )
    for (salt, tokens), (next_salt, next_tokens) in zip(page.keys, page.keys[1:], strict=False):
        is_prefix = salt == next_salt and tokens == next_tokens[: len(tokens)]
        assert not is_prefix, "a page's tokens are a prefix of a sibling's"
