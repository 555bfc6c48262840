"""Events of the prefix cache, for other programs. For example, a router sends a request to the engine that caches its
prefix.

The engine's thread collects events and publishes them once a step. Any thread may take them. Above a limit, the oldest
events are dropped.
"""

from __future__ import annotations

import sys
import threading
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

DEVICE_LEVEL, HOST_LEVEL = 0, 1
"""The tiers of pages, as `level` in events."""
ROOT_HASH = 0
"""The parent's hash for a text's first page."""


@dataclass(frozen=True)
class PagesCreated:
    """The cache was created, with `num_pages[0]` pages on the device and `num_pages[1]` on the host."""

    num_pages: tuple[int, int]


@dataclass(frozen=True)
class StoredPage:
    """A page that entered the cache.

    hash: covers the salt and the text up to the page's end (`page_hash`). It is the same in every process.
    tokens: the page's own tokens. A partly filled page has fewer than the page size.
    level: 0 on the device, 1 on the host.
    lora_id: always None.
    """

    hash: int
    tokens: tuple[int, ...]
    level: int
    priority: int
    lora_id: int | None = None


@dataclass(frozen=True)
class PagesStored:
    """Consecutive pages of a text entered the cache. The first one follows the page with `parent_hash`. None: it is the
    first page of the text."""

    parent_hash: int | None
    pages: tuple[StoredPage, ...]


@dataclass(frozen=True)
class PagesRemoved:
    """Pages left the cache: neither tier has them any more."""

    hashes: tuple[int, ...]


@dataclass(frozen=True)
class Change:
    """The old and the new value of a property."""

    old: int
    new: int


@dataclass(frozen=True)
class PageUpdated:
    """The `level` or the `priority` of a page changed. A field is None if it did not change."""

    hash: int
    level: Change | None = None
    priority: Change | None = None


@dataclass(frozen=True)
class KvEvent:
    """One event. `id` counts events from 0. `window_size` is the engine's `max_seq_len`. `rank` is always None."""

    id: int
    data: PagesCreated | PagesStored | PagesRemoved | PageUpdated
    window_size: int
    rank: int | None = None


class KvEventLog:
    """Keeps the last `size` events until they are taken. Any thread may call `get_latest_events`; the other methods
    belong to the engine's thread."""

    def __init__(self, size: int, window_size: int) -> None:
        assert size > 0
        self._window_size = window_size
        self._next_id = 0
        self._noted: list[KvEvent] = []
        self._removed: list[int] = []
        self._events: deque[KvEvent] = deque(maxlen=size)
        self._has_events = threading.Condition()
        self._is_closed = False

    def note(self, data: PagesCreated | PagesStored | PageUpdated) -> None:
        """Add an event to the current step."""
        self._end_removed()
        self._append(data)

    def note_removed(self, page_hash: int) -> None:
        """Add the removal of a page to the current step. Consecutive removals become one event."""
        self._removed.append(page_hash)

    def flush(self) -> None:
        """Publish the events of the current step."""
        self._end_removed()
        if not self._noted:
            return
        with self._has_events:
            self._events.extend(self._noted)
            self._has_events.notify_all()
        self._noted.clear()

    def get_latest_events(self, timeout_s: float | None = None) -> list[KvEvent]:
        """Take all published events, oldest first.

        Waits up to `timeout_s` seconds for the first event (None: no limit), or until the log is closed. Returns an
        empty list if there is no event.
        """
        with self._has_events:
            self._has_events.wait_for(lambda: self._events or self._is_closed, timeout_s)
            events = list(self._events)
            self._events.clear()
        return events

    def close(self) -> None:
        """Publish the last events and wake all waiting threads. Events can still be taken afterwards."""
        self.flush()
        with self._has_events:
            self._is_closed = True
            self._has_events.notify_all()

    def _end_removed(self) -> None:
        if self._removed:
            removed, self._removed = self._removed, []
            self._append(PagesRemoved(tuple(removed)))

    def _append(self, data: PagesCreated | PagesStored | PagesRemoved | PageUpdated) -> None:
        self._noted.append(KvEvent(self._next_id, data, self._window_size))
        self._next_id += 1


def page_hash(parent: int, tokens: Sequence[int], salt: int = 0) -> int:
    """The hash of the page with `tokens` that follows the page with hash `parent`. Only events use it; the cache itself
    never looks up a page by its hash.

    It is the 8-byte BLAKE2b digest of the parent's hash (8 bytes), the salt (32 bytes) and the tokens (8 bytes each),
    all little-endian. The salt is zero if there is none, and for all pages but a text's first.
    """
    state = blake2b(parent.to_bytes(8, "little") + salt.to_bytes(32, "little"), digest_size=8)
    numbers = array("q", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    state.update(numbers.tobytes())
    return int.from_bytes(state.digest(), "little")
