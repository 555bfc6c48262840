"""A queue that serves clients in turn, so that a client with many items delays another client by one item only."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class FairQueue(Generic[T]):
    """Items that wait, each for one client or several. Not thread-safe: the owner's lock or event loop guards it.

    `take` serves the client with the fewest items in progress; among equals, the one that has waited longest. The
    items of one client are served in the order of arrival. With `size`, its oldest and its smallest item alternate.
    """

    def __init__(self, size: Callable[[T], int] | None = None) -> None:
        # Requests without an API key share one client. With sizes, its small requests do not wait for all large ones.
        self._size = size
        self._waiting: OrderedDict[Hashable, _Line[T]] = (
            OrderedDict()
        )  # the client served least recently is first
        self._clients: dict[T, set[Hashable]] = {}  # the clients of each waiting item
        self._in_progress: Counter[Hashable] = Counter()  # items taken and not yet done, by client

    def __len__(self) -> int:
        return len(self._clients)

    def __contains__(self, item: T) -> bool:
        return item in self._clients

    def num_waiting(self, client: Hashable) -> int:
        """The number of a client's waiting items."""
        line = self._waiting.get(client)
        return 0 if line is None else len(line.items)

    def add(self, client: Hashable, item: T) -> None:
        """Add an item for a client. An item added for several clients is served once, when the first of them has its
        turn."""
        self._clients.setdefault(item, set()).add(client)
        if client not in self._waiting:
            self._waiting[client] = _Line(alternates=self._size is not None)
        self._waiting[client].add(item, 0 if self._size is None else self._size(item))

    def take(self) -> tuple[Hashable, T]:
        """Remove and return the next item, with the client that it is served for. The item counts as in progress until
        `done(client)`. The queue must not be empty."""
        # min() returns the first of equals, which is the client served least recently.
        client = min(self._waiting, key=lambda waiting: self._in_progress[waiting])
        item = self._waiting[client].next()
        self._waiting.move_to_end(client)
        self._in_progress[client] += 1
        for sharer in self._clients.pop(item):
            self._waiting[sharer].remove(item)
            if not self._waiting[sharer].items:
                del self._waiting[sharer]
        return client, item

    def done(self, client: Hashable) -> None:
        """Note that an item that `take` returned for this client is no longer in progress."""
        self._in_progress[client] -= 1
        if self._in_progress[client] <= 0:
            del self._in_progress[client]

    def clear(self) -> list[T]:
        """Remove and return all waiting items."""
        items = list(self._clients)
        self._clients.clear()
        self._waiting.clear()
        return items


class _Line(Generic[T]):
    """The waiting items of one client, in the order of arrival and, for `alternates`, also by size."""

    def __init__(self, alternates: bool) -> None:
        self.items: OrderedDict[T, int] = OrderedDict()  # item -> its number, oldest first
        self._alternates = alternates
        self._takes_smallest = False
        self._numbers = itertools.count()
        self._by_number: dict[int, T] = {}
        self._by_size: list[tuple[int, int]] = []  # a heap of (size, number), with removed items still in it

    def add(self, item: T, size: int) -> None:
        if item not in self.items:
            number = self.items[item] = next(self._numbers)
            self._by_number[number] = item
            heapq.heappush(self._by_size, (size, number))

    def remove(self, item: T) -> None:
        del self._by_number[self.items.pop(item)]
        # A heap can't drop entries in its middle. Rebuilding it when half are stale keeps its length bounded.
        if len(self._by_size) > 2 * len(self.items) + 16:
            self._by_size = [entry for entry in self._by_size if entry[1] in self._by_number]
            heapq.heapify(self._by_size)

    def next(self) -> T:
        """Return the item to serve next, without removing it."""
        is_smallest, self._takes_smallest = (
            self._takes_smallest,
            self._alternates and not self._takes_smallest,
        )
        if not is_smallest:
            return next(iter(self.items))
        while self._by_size[0][1] not in self._by_number:
            heapq.heappop(self._by_size)
        return self._by_number[self._by_size[0][1]]
