"""An engine's pages of keys and values, where memory decides how many there are."""

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
    """Make all caches as large as memory allows, now that the weights are there: the config says how large. `given` is
    the `num_pages` of the caller. Raises `InputError` for too little."""
    free = runtime.free_memory() if config.kv_memory_fraction is not None else 0
    memory = DeviceMemory(free, is_shared=runtime.device.type == "cpu")
    page_bytes = sum(cache.page_bytes for cache in caches)
    num_pages = pages_in_memory(config, given, page_bytes, memory, num_drafts)
    for cache in caches:
        cache.resize(num_pages)
    return replace(config, num_pages=num_pages)
