"""What becomes of cached pages, told to readers outside, such as a router that sends texts to where their beginning is.

The engine's thread notes what happens; once a step all of it can be taken, from any thread. Where nobody takes it, the
oldest events are dropped.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

DEVICE_LEVEL, HOST_LEVEL = 0, 1
"""Where a page is."""


@dataclass(frozen=True)
class PagesCreated:
    """The cache was made: `num_pages[0]` pages of the device, `num_pages[1]` of the host."""

    num_pages: tuple[int, int]


@dataclass(frozen=True)
class StoredPage:
    """A page that can be found now. `hash` is 64 bits over the text up to its end and the salt (`hashes.py`), the same
    in every process; `tokens` are the page's own, fewer than a page holds where the text ended in it. `level` is 0 on
    the device, 1 on the host. `lora_id` is None."""

    hash: int
    tokens: tuple[int, ...]
    level: int
    priority: int
    lora_id: int | None = None


@dataclass(frozen=True)
class PagesStored:
    """Pages can be found, each after the one before it, the first after the page of `parent_hash` (None: a text begins
    with it)."""

    parent_hash: int | None
    pages: tuple[StoredPage, ...]


@dataclass(frozen=True)
class PagesRemoved:
    """Pages can't be found any more, in either tier."""

    hashes: tuple[int, ...]


@dataclass(frozen=True)
class Change:
    """What something was, and what it is."""

    old: int
    new: int


@dataclass(frozen=True)
class PageUpdated:
    """A page went to another `level`, or was given another `priority`; None is what stayed."""

    hash: int
    level: Change | None = None
    priority: Change | None = None


@dataclass(frozen=True)
class KvEvent:
    """Number `id` of the events since the cache was made, from 0. `window_size` is the longest text, in tokens; `rank`
    is None."""

    id: int
    data: PagesCreated | PagesStored | PagesRemoved | PageUpdated
    window_size: int
    rank: int | None = None


class KvEventLog:
    """The last `size` events that nobody has taken. All but `get_latest_events` is for the engine's thread."""

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
        """Something happened, in the step that is under way."""
        self._end_removed()
        self._append(data)

    def note_removed(self, page_hash: int) -> None:
        """A page can't be found any more. What goes one after another is one event."""
        self._removed.append(page_hash)

    def flush(self) -> None:
        """Let what was noted be taken."""
        self._end_removed()
        if not self._noted:
            return
        with self._has_events:
            self._events.extend(self._noted)
            self._has_events.notify_all()
        self._noted.clear()

    def get_latest_events(self, timeout_s: float | None = None) -> list[KvEvent]:
        """Take all events there are, the oldest first. Waits for the first one, at most `timeout_s` seconds (None:
        until there is one, or the engine is closed); where none comes, the list is empty."""
        with self._has_events:
            self._has_events.wait_for(lambda: self._events or self._is_closed, timeout_s)
            events = list(self._events)
            self._events.clear()
        return events

    def close(self) -> None:
        """No more events come: nobody waits any longer. What there is can still be taken."""
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


# MERGED-DOC """Names of cached pages for readers outside: 64 bits that say what text ends in a page, in any process and any run.
# MERGED-DOC
# MERGED-DOC A page is looked up by its tokens, never by such a name.
# MERGED-DOC """


ROOT_HASH = 0
"""What stands for the parent of a text's first page."""


def page_hash(parent: int, tokens: Sequence[int], salt: int = 0) -> int:
    """The name of the page of `tokens` after the page named `parent`: the first 8 bytes, little-endian, of BLAKE2b over
    the parent's name (8 bytes), the salt (32 bytes, zeros for none; of a text's first page alone) and the tokens (8
    bytes each), all little-endian."""
    state = blake2b(parent.to_bytes(8, "little") + salt.to_bytes(32, "little"), digest_size=8)
    numbers = array("q", tokens)
    state.update(numbers.tobytes() if _IS_LITTLE else _swapped(numbers))
    return int.from_bytes(state.digest(), "little")


_IS_LITTLE = array("q", [1]).tobytes()[0] == 1


def _swapped(numbers: array[int]) -> bytes:
    numbers.byteswap()
    return numbers.tobytes()
