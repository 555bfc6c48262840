"""Computes the number of KV pages that fit into the memory of the device and of the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.config import CacheConfig, ResolvedConfig, positions_ahead
from weft.engine.kv.attention_span import AttentionSpan
from weft.engine.kv.windowed import pages_while_decoding
from weft.errors import InputError
from weft.ops.attention import Window

DEVICE_FRACTION, SHARED_FRACTION = 0.9, 0.5
"""The default shares of the free memory for KV pages: of a device, and of memory that other processes use too."""


@dataclass(frozen=True)
class DeviceMemory:
    """The free memory of the device. `is_shared`: the memory is the host's, which other processes use too."""

    free_bytes: int
    is_shared: bool


def windowed_pages(config: ResolvedConfig, windows: Sequence[Window], num_draft_tokens: int) -> int:
    """The number of pages for layers with windows, page 0 included. `windows` are those of all layers, the drafter's
    too. 0 if these layers have the pages of the other layers: no layer has a window or all have, something is on that
    works with one kind of pages only, or there would be no fewer pages.

    They are enough if all slots decode, and one reads a text of `max_seq_len` tokens. As many again are for cached
    texts, and a quarter of the other layers' pages beyond `max_batch` texts of `max_seq_len` tokens.
    """
    narrow = [window for window in windows if window.size]
    if not narrow or len(narrow) == len(windows):
        return 0
    if config.host_cache_bytes or config.max_beam_width > 1 or config.num_snapshots:
        return 0
    span = AttentionSpan.of(narrow)
    assert span is not None
    each = pages_while_decoding(span, config.page_size, positions_ahead(num_draft_tokens))
    longest = max(config.pages_for(config.max_seq_len, num_draft_tokens), each)
    num_spare = max(config.num_pages - 1 - config.max_batch * longest, 0)
    num_windowed = 1 + 2 * (longest + (config.max_batch - 1) * each) + num_spare // 4
    return num_windowed if num_windowed < config.num_pages else 0


def pages_in_memory(
    config: ResolvedConfig,
    given: int | None,
    page_bytes: int,
    memory: DeviceMemory,
    num_draft_tokens: int,
    state_bytes: int = 0,
    windowed_bytes: int = 0,
) -> int:
    """The number of device pages of `page_bytes` bytes each. It includes page 0, which is reserved for padding.

    `kv_memory_fraction`, `kv_max_bytes` and `given` limit the number; `given` is the `num_pages` of the caller's
    config. The full need is the number of pages with a text of `max_seq_len` tokens in every slot. Without a fraction
    and without `given`, the full need and a default fraction are further limits. With a fraction of shared memory and
    without `given`, twice the full need is a further limit, to leave the rest to other processes. Raises `InputError`
    if neither a text of `max_seq_len` tokens nor `given` pages fit.

    `state_bytes` are taken first, for the states of a model with recurrent layers; raises `InputError` if they do not
    fit. If no layer keeps keys and values, pages take no memory, and the limits do not matter. `windowed_bytes` of
    the limits are for windowed pages.
    """
    is_measured = given is None or config.kv_memory_fraction is not None
    if state_bytes and is_measured:
        free = memory.free_bytes - state_bytes
        if free < 0:
            raise InputError(
                f"the states of {config.max_batch} requests and {config.num_snapshots} cached texts take {state_bytes} "
                f"bytes, and {memory.free_bytes} are free; lower max_batch or num_snapshots"
            )
        memory = replace(memory, free_bytes=free)
    if not page_bytes:
        return given or config.num_pages
    limits: dict[str, int] = {}
    fraction = config.kv_memory_fraction
    if fraction is None and given is None:
        fraction = SHARED_FRACTION if memory.is_shared else DEVICE_FRACTION
    if fraction is not None:
        limits["kv_memory_fraction"] = int(memory.free_bytes * fraction)
    if config.kv_max_bytes is not None:
        limits["kv_max_bytes"] = config.kv_max_bytes
    name = min(limits, key=lambda name: limits[name])
    pages = max(limits[name] - windowed_bytes, 0) // page_bytes
    needed = 1 + config.pages_for(config.max_seq_len, num_draft_tokens)
    if pages < min(needed, given or needed):
        of = f" of {memory.free_bytes} free bytes" if name == "kv_memory_fraction" else ""
        raise InputError(
            f"{name} is {fraction if of else config.kv_max_bytes}{of}, room for {pages} pages of {page_bytes} "
            f"bytes; a request of max_seq_len, {config.max_seq_len}, tokens needs {needed}, with the one that pads: "
            f"{needed * page_bytes} bytes. Raise {name}, or lower max_seq_len"
        )
    if given is not None:
        return min(pages, given)
    if config.kv_memory_fraction is None:
        return min(pages, config.num_pages)
    return min(pages, 2 * config.num_pages) if memory.is_shared else pages


def host_pages(config: CacheConfig, page_bytes: int) -> int:
    """The number of host pages that fit into `host_cache_bytes`; 0 without it, without reuse, or if pages are empty,
    because all layers are recurrent. Raises `InputError` if not even one page fits."""
    if not (config.host_cache_bytes and config.reuse and page_bytes):
        return 0
    if config.host_cache_bytes < page_bytes:
        raise InputError(
            f"host_cache_bytes is {config.host_cache_bytes}; a page takes {page_bytes} bytes: give at least that, or 0"
        )
    return config.host_cache_bytes // page_bytes
