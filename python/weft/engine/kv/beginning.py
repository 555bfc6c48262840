"""How a sequence begins: what is cached of its text, and the pages that it gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.engine.kv.moves import Move, MoveKind
from weft.engine.kv.pool import PagePool
from weft.engine.kv.prefix_tree import CachedPage


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
