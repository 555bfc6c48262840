"""Ported: the events of the cache of keys and values."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import weft.executor as trtllm

BLOCK = 64
"""Tokens of a block. TensorRT-LLM's engine says it, weft's config."""
BYTES_OF_A_BLOCK = BLOCK * 5 * 2 * 3 * 32 * 2
"""Of weft-tiny in bfloat16: layers, keys and values, heads, what a head holds."""


def with_events(**fields: Any) -> Any:
    """A config of four blocks whose events are kept."""
    cache = trtllm.KvCacheConfig(
        True, 4 * BLOCK, event_buffer_max_size=1024, free_gpu_memory_fraction=0.5, **fields
    )
    return trtllm.ExecutorConfig(1, kv_cache_config=cache)


def events_of(executor: Any, manager: Any, prompt: list[int], count: int) -> list[Any]:
    """The data of the `count` events that come of a request of five tokens."""
    request = trtllm.Request(prompt, max_tokens=5, streaming=False, sampling_config=trtllm.SamplingConfig())
    (response,) = executor.await_responses(executor.enqueue_request(request))
    assert not response.has_error(), response.error_msg
    events: list[Any] = []
    until = time.monotonic() + 60
    while len(events) < count and time.monotonic() < until:
        events += manager.get_latest_events(timedelta(milliseconds=100))
    events += manager.get_latest_events(timedelta(milliseconds=100))
    assert len(events) == count, [event.data for event in events]
    return events


def manager_events(executor: Any, manager: Any, prompt: list[int]) -> list[Any]:
    """The events that come of a request of five tokens, until there are no more for a while."""
    request = trtllm.Request(prompt, max_tokens=5)
    (response,) = executor.await_responses(executor.enqueue_request(request))
    assert not response.has_error(), response.error_msg
    events: list[Any] = []
    while came := manager.get_latest_events(timedelta(milliseconds=300)):
        events += came
    return events


def test_kv_event_stream(launch: Callable[..., Any]) -> None:
    """Two requests of three blocks each, room for four blocks, and for one of those that go."""
    kinds = trtllm.kv_cache
    executor = launch(with_events(host_cache_size=BYTES_OF_A_BLOCK + 1000, tokens_per_block=BLOCK))
    manager = executor.get_kv_cache_event_manager()
    (created,) = manager.get_latest_events()
    assert isinstance(created, kinds.KVCacheEvent)
    assert created.event_id == 0
    assert isinstance(created.data, kinds.KVCacheCreatedData)

    first = [event.data for event in events_of(executor, manager, list(range(127)), 3)]
    assert all(isinstance(data, kinds.KVCacheStoredData) for data in first)
    stored = [block for data in first for block in data.blocks]
    assert [len(block.tokens) for block in stored] == [BLOCK, BLOCK, 3]
    assert [data.parent_hash for data in first] == [None, *(block.block_hash for block in stored[:2])]

    # The second text begins otherwise: its blocks take the place of the first one's, one of which the host keeps.
    second = [event.data for event in manager_events(executor, manager, list(range(1, 128)))]
    moved = [data for data in second if isinstance(data, kinds.KVCacheUpdatedData)]
    assert moved
    for data in moved:
        assert isinstance(data.cache_level, kinds.KVCacheEventDiffInt)
        assert (data.cache_level.old_value, data.cache_level.new_value) == (0, 1)
    removed = [h for data in second if isinstance(data, kinds.KVCacheRemovedData) for h in data.block_hashes]
    assert removed and set(removed) <= {block.block_hash for block in stored}
    again = [b for data in second if isinstance(data, kinds.KVCacheStoredData) for b in data.blocks]
    assert [len(block.tokens) for block in again] == [BLOCK, BLOCK, 3]


def test_kv_event_stream_timeout(launch: Callable[..., Any]) -> None:
    executor = launch(with_events())
    manager = executor.get_kv_cache_event_manager()
    assert len(manager.get_latest_events()) == 1
    started = time.monotonic()
    assert manager.get_latest_events(timedelta(seconds=1)) == []
    assert time.monotonic() - started > 0.9
