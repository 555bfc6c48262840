"""Snapshots of recurrent states, for models with layers that keep a state instead of keys and values.

A state can't be cut back, so such a model can reuse a cached prefix only up to a position whose state was kept. A
snapshot is that state: a row of the device's memory. It belongs to the page that holds the last position before it.

A row is in one of three states:

- free;
- pending: a sequence took it. Work that writes it is launched or scheduled, but its page is not in the tree yet;
- attached to a page of the tree. If no row is free, the one that was used least recently is evicted.

The device writes and reads rows in stream order. So a row can be taken again at once, as pages can.
"""

from __future__ import annotations

from collections import abc
from typing import NamedTuple

from weft.engine.kv.prefix_tree import CachedPage, Snapshot


class PendingSnapshot(NamedTuple):
    """A row that a sequence took, for the state after its first `position` tokens."""

    position: int
    row: int
    next_token: int | None = None


class Snapshots:
    """The pool of rows 0 to `num_rows` - 1.

    free: the free rows.
    num_hits: the number of sequences so far that began with a snapshot.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.free = list(range(num_rows - 1, -1, -1))
        self.num_hits = 0
        self._attached: dict[int, Snapshot] = {}  # by row, the least recently used first

    @property
    def attached(self) -> abc.Collection[Snapshot]:
        """The snapshots in the tree, the least recently used first."""
        return self._attached.values()

    def take(self) -> int | None:
        """Take a row, which is then pending. Evicts a snapshot if no row is free. Returns None if all rows are
        pending."""
        if not self.free:
            if not self._attached:
                return None
            self._remove(next(iter(self._attached.values())))
        return self.free.pop()

    def attach(self, pending: PendingSnapshot, page: CachedPage, offset: int) -> None:
        """Attach a pending row to a page. If the page has a snapshot with that offset, that one stays."""
        for snapshot in page.snapshots:
            if snapshot.offset == offset:  # the same state
                self.free.append(pending.row)
                snapshot.next_token = pending.next_token
                self._touch(snapshot)
                return
        snapshot = Snapshot(pending.row, page, offset, pending.next_token)
        page.snapshots = tuple(sorted((*page.snapshots, snapshot), key=lambda each: -each.offset))
        self._attached[snapshot.row] = snapshot

    def use(self, snapshot: Snapshot) -> int:
        """Count a use of a snapshot, which its page may have lost. Returns its row."""
        self.num_hits += 1
        if snapshot.row in self._attached:
            self._touch(snapshot)
        return snapshot.row

    def detach(self, page: CachedPage) -> tuple[Snapshot, ...]:
        """Remove the snapshots of a page. Their rows are pending then."""
        snapshots, page.snapshots = page.snapshots, ()
        for snapshot in snapshots:
            del self._attached[snapshot.row]
        return snapshots

    def move(self, page: CachedPage, target: CachedPage) -> None:
        """Move the snapshots of a page to `target`, which has none and begins with the page's tokens."""
        assert not target.snapshots
        target.snapshots, page.snapshots = page.snapshots, ()
        for snapshot in target.snapshots:
            snapshot.page = target

    def drop(self, page: CachedPage) -> None:
        """Free the rows of a page that leaves the tree."""
        self.free += [snapshot.row for snapshot in self.detach(page)]

    def _touch(self, snapshot: Snapshot) -> None:
        del self._attached[snapshot.row]
        self._attached[snapshot.row] = snapshot

    def _remove(self, snapshot: Snapshot) -> None:
        del self._attached[snapshot.row]
        snapshot.page.snapshots = tuple(each for each in snapshot.page.snapshots if each is not snapshot)
        self.free.append(snapshot.row)


class SnapshotQuery(NamedTuple):
    """Finds the snapshots that a text can begin with.

    num_matched: the number of the text's first tokens that are cached, less than all, because the last token must be
        read.
    margin: the number of a drafter's entries before a snapshot that depend on tokens after it. They are valid if as
        many tokens after the snapshot match, too, or if the margin is 1 and the next token is the same.
    multiple: a usable position is a multiple of this.
    """

    tokens: abc.Sequence[int]
    num_matched: int
    margin: int
    multiple: int = 1

    def find(self, page: CachedPage, start: int) -> Snapshot | None:
        """The last usable snapshot of a page that begins at position `start`; None if it has none."""
        for snapshot in page.snapshots:  # the largest offset first
            position = start + snapshot.offset
            if position > self.num_matched or position % self.multiple:
                continue
            is_next = self.margin == 1 and snapshot.next_token == self.tokens[position]
            if position <= self.num_matched - self.margin or is_next:
                return snapshot
        return None
