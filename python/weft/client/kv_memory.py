"""Sizes an engine's KV cache by the free memory of the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.config import ResolvedConfig
from weft.engine.kv.size import DeviceMemory, pages_in_memory
from weft.models.base import PagedKV
from weft.runtime.interface import Runtime


def sized_by_memory(
    runtime: Runtime, caches: Sequence[PagedKV], config: ResolvedConfig, given: int | None, num_drafts: int
) -> ResolvedConfig:
    """Resize all caches to fit the free memory, and return the config with the resulting `num_pages`. All weights must
    be loaded. `given` is the caller's `num_pages`. Raises `InputError` if too few pages fit."""
    free = runtime.free_memory() if config.kv_memory_fraction is not None else 0
    memory = DeviceMemory(free, is_shared=runtime.device.type == "cpu")
    page_bytes = sum(cache.page_bytes for cache in caches)
    num_pages = pages_in_memory(config, given, page_bytes, memory, num_drafts)
    for cache in caches:
        cache.resize(num_pages)
    return replace(config, num_pages=num_pages)
