"""Events of the KV cache: blocks that were stored, moved or removed. Routers use them to send a request to the
executor that caches its prefix.

`Executor.get_kv_cache_event_manager()` returns the manager. `KvCacheConfig.event_buffer_max_size` limits the events
that are kept."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from weft.engine.kv.events import (
    Change,
    KvEvent,
    KvEventLog,
    PagesCreated,
    PagesRemoved,
    PagesStored,
    PageUpdated,
    StoredPage,
)

__all__ = [
    "KVCacheCreatedData",
    "KVCacheEvent",
    "KVCacheEventDiffInt",
    "KVCacheEventManager",
    "KVCacheRemovedData",
    "KVCacheStoredBlockData",
    "KVCacheStoredData",
    "KVCacheUpdatedData",
    "UniqueToken",
]


@dataclass(frozen=True)
class UniqueToken:
    """A token of a block; `token_extra_id` is always 0."""

    token_id: int
    token_extra_id: int = 0


@dataclass(frozen=True)
class KVCacheCreatedData:
    """The cache was created. The list holds the number of blocks on the device and on the host."""

    num_blocks_per_cache_level: list[int]


@dataclass(frozen=True)
class KVCacheStoredBlockData:
    """A block that requests can reuse now. `block_hash` is a 64-bit hash of the salt and of all tokens up to the
    block's end."""

    block_hash: int
    tokens: list[UniqueToken]
    lora_id: int | None
    cache_level: int
    priority: int
    mm_keys: tuple[()] = ()


@dataclass(frozen=True)
class KVCacheStoredData:
    """Consecutive blocks that requests can reuse now. The first one follows the block `parent_hash`; None: it is the
    first block of its text."""

    parent_hash: int | None
    blocks: list[KVCacheStoredBlockData]


@dataclass(frozen=True)
class KVCacheRemovedData:
    """Blocks that requests can no longer reuse."""

    block_hashes: list[int]


@dataclass(frozen=True)
class KVCacheEventDiffInt:
    """The old and the new value of a changed number."""

    old_value: int
    new_value: int


@dataclass(frozen=True)
class KVCacheUpdatedData:
    """A block whose level (0: device, 1: host) or priority changed; None: unchanged."""

    block_hash: int
    cache_level: KVCacheEventDiffInt | None
    priority: KVCacheEventDiffInt | None


EventData = KVCacheCreatedData | KVCacheStoredData | KVCacheRemovedData | KVCacheUpdatedData


@dataclass(frozen=True)
class KVCacheEvent:
    """An event, numbered from 0 by `event_id`. `window_size` is the longest text in tokens. `attention_dp_rank` is
    None."""

    event_id: int
    data: EventData
    window_size: int
    attention_dp_rank: int | None = None


class KVCacheEventManager:
    """Hands out the events of an executor's cache. Thread-safe."""

    def __init__(self, log: KvEventLog) -> None:
        self._log = log

    def get_latest_events(self, timeout_ms: timedelta | float | None = None) -> list[KVCacheEvent]:
        """Take all events, oldest first. Waits for the first event, at most `timeout_ms` milliseconds (a number or a
        timedelta). None: waits until there is an event, or the executor is shut down."""
        if timeout_ms is None:
            seconds = None
        else:
            seconds = (
                timeout_ms.total_seconds() if isinstance(timeout_ms, timedelta) else float(timeout_ms) / 1000
            )
        return [_event(event) for event in self._log.get_latest_events(seconds)]


def _event(event: KvEvent) -> KVCacheEvent:
    return KVCacheEvent(event.id, _data(event.data), event.window_size, event.rank)


def _data(data: PagesCreated | PagesStored | PagesRemoved | PageUpdated) -> EventData:
    if isinstance(data, PagesCreated):
        return KVCacheCreatedData([*data.num_pages])
    if isinstance(data, PagesStored):
        return KVCacheStoredData(data.parent_hash, [_block(page) for page in data.pages])
    if isinstance(data, PagesRemoved):
        return KVCacheRemovedData([*data.hashes])
    return KVCacheUpdatedData(data.hash, _diff(data.level), _diff(data.priority))


def _block(page: StoredPage) -> KVCacheStoredBlockData:
    tokens = [UniqueToken(token) for token in page.tokens]
    return KVCacheStoredBlockData(page.hash, tokens, page.lora_id, page.level, page.priority)


def _diff(change: Change | None) -> KVCacheEventDiffInt | None:
    return None if change is None else KVCacheEventDiffInt(change.old, change.new)
