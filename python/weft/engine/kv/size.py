"""How many pages of keys and values there are, where memory decides."""

from __future__ import annotations

from dataclasses import dataclass

from weft.config import CacheConfig, ResolvedConfig
from weft.errors import InputError


@dataclass(frozen=True)
class DeviceMemory:
    """`free_bytes` bytes of the device are free; `is_shared`: it is the host's, in which everything else lives, too."""

    free_bytes: int
    is_shared: bool


def pages_in_memory(
    config: ResolvedConfig, given: int | None, page_bytes: int, memory: DeviceMemory, num_draft_tokens: int
) -> int:
    """How many pages of `page_bytes` bytes a config makes; `given` is the `num_pages` that its caller wrote.
    Page 0, which only pads, counts.

    That is the least of what `kv_memory_fraction` and `kv_max_bytes` are room for, and of `given`. With neither a
    fraction nor `given`, it is no more than what all slots need for texts of `max_seq_len` tokens; with a fraction of
    memory that is shared, no more than twice that (as much again for texts that have ended): the rest is others'.
    Raises `InputError` where a request of `max_seq_len` tokens does not fit into what memory leaves.
    """
    rooms: dict[str, int] = {}
    if config.kv_memory_fraction is not None:
        rooms["kv_memory_fraction"] = int(memory.free_bytes * config.kv_memory_fraction)
    if config.kv_max_bytes is not None:
        rooms["kv_max_bytes"] = config.kv_max_bytes
    name = min(rooms, key=lambda name: rooms[name])
    pages = rooms[name] // page_bytes
    needed = 1 + config.pages_for(config.max_seq_len, num_draft_tokens)
    if pages < min(needed, given or needed):
        of = f" of {memory.free_bytes} free bytes" if name == "kv_memory_fraction" else ""
        raise InputError(
            f"{name} is {getattr(config, name)}{of}, room for {pages} pages of {page_bytes} bytes; a request of "
            f"max_seq_len, {config.max_seq_len}, tokens needs {needed}, with the one that pads: {needed * page_bytes} "
            f"bytes. Raise {name}, or lower max_seq_len"
        )
    if given is not None:
        return min(pages, given)
    if config.kv_memory_fraction is None:
        return min(pages, config.num_pages)
    return min(pages, 2 * config.num_pages) if memory.is_shared else pages


def host_pages(config: CacheConfig, page_bytes: int) -> int:
    """How many pages `host_cache_bytes` are; none where nothing is kept to be found. Raises `InputError` where they are
    too few for one."""
    if not (config.host_cache_bytes and config.reuse):
        return 0
    if config.host_cache_bytes < page_bytes:
        raise InputError(
            f"host_cache_bytes is {config.host_cache_bytes}; a page takes {page_bytes} bytes: give at least that, or 0"
        )
    return config.host_cache_bytes // page_bytes
