"""Events of the prefix cache, for readers outside: a router sends a text to the engine that caches its beginning.

The engine's thread notes events and publishes them once a step; any thread may take them. If no thread does, the oldest
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
"""The tier of a page."""
ROOT_HASH = 0
"""The parent of a text's first page."""


@dataclass(frozen=True)
class PagesCreated:
    """The cache was created, with `num_pages[0]` pages on the device and `num_pages[1]` on the host."""

    num_pages: tuple[int, int]


@dataclass(frozen=True)
class StoredPage:
    """A page that entered the cache. `hash` covers the salt and the text up to the page's end (`page_hash`), and is the
    same in every process. `tokens` are the page's own; a partly filled page has fewer. `level` is 0 on the device, 1 on
    the host. `lora_id` is None."""

    hash: int
    tokens: tuple[int, ...]
    level: int
    priority: int
    lora_id: int | None = None


@dataclass(frozen=True)
class PagesStored:
    """Pages entered the cache, in the order of their text. The first follows the page of `parent_hash` (None: it begins
    a text)."""

    parent_hash: int | None
    pages: tuple[StoredPage, ...]


@dataclass(frozen=True)
class PagesRemoved:
    """Pages left the cache: they are in neither tier."""

    hashes: tuple[int, ...]


@dataclass(frozen=True)
class Change:
    """The old and the new value of a property."""

    old: int
    new: int


@dataclass(frozen=True)
class PageUpdated:
    """The `level` or the `priority` of a page changed. None stands for no change."""

    hash: int
    level: Change | None = None
    priority: Change | None = None


@dataclass(frozen=True)
class KvEvent:
    """One event. `id` counts from 0 since the cache was created. `window_size` is the longest text, in tokens. `rank`
    is None."""

    id: int
    data: PagesCreated | PagesStored | PagesRemoved | PageUpdated
    window_size: int
    rank: int | None = None


class KvEventLog:
    """Keeps the last `size` events that were not taken. Only `get_latest_events` may be called on any thread."""

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
        """Add an event of the current step."""
        self._end_removed()
        self._append(data)

    def note_removed(self, page_hash: int) -> None:
        """Note that a page left the cache. Consecutive removals form one event."""
        self._removed.append(page_hash)

    def flush(self) -> None:
        """Publish the noted events."""
        self._end_removed()
        if not self._noted:
            return
        with self._has_events:
            self._events.extend(self._noted)
            self._has_events.notify_all()
        self._noted.clear()

    def get_latest_events(self, timeout_s: float | None = None) -> list[KvEvent]:
        """Take all published events, oldest first. Waits up to `timeout_s` seconds for the first one (None: until there
        is one, or the log is closed), and returns an empty list if there is none."""
        with self._has_events:
            self._has_events.wait_for(lambda: self._events or self._is_closed, timeout_s)
            events = list(self._events)
            self._events.clear()
        return events

    def close(self) -> None:
        """Publish the last events and wake all waiting threads. Published events can still be taken."""
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
    """Name the page of `tokens` after the page named `parent`, for readers outside; the cache itself never looks a page
    up by its name.

    It is the first 8 bytes of BLAKE2b over the parent's name (8 bytes), the salt (32 bytes, zeros for none; only on a
    text's first page) and the tokens (8 bytes each), all little-endian.
    """
    state = blake2b(parent.to_bytes(8, "little") + salt.to_bytes(32, "little"), digest_size=8)
    numbers = array("q", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    state.update(numbers.tobytes())
    return int.from_bytes(state.digest(), "little")
