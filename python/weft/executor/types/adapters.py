"""Settings of LoRA adapters. Values are kept as given; a request with an adapter is refused."""

from __future__ import annotations

from typing import Annotated

from weft.core import ValueKind
from weft.executor.types.fields import Bytes, Count, NotNegative, Share, Tensor, Text, Within
from weft.executor.types.settings import Settings


class LoraConfig(Settings):
    """The LoRA adapter of a request: its number `task_id`, its `weights`, and their layout `config`. Only the first
    request with a `task_id` needs weights and layout."""

    task_id: Annotated[int, Within(ValueKind.INTEGER, 0, 2**64 - 1, "64 bits, unsigned")]
    weights: Tensor | None = None
    config: Tensor | None = None


class PeftCacheConfig(Settings):
    """Sizes of the adapter cache. weft has no such cache, so they have no effect."""

    num_host_module_layer: NotNegative = 0
    num_device_module_layer: NotNegative = 0
    optimal_adapter_size: Count = 8
    max_adapter_size: Count = 64
    num_put_workers: Count = 1
    num_ensure_workers: Count = 1
    num_copy_streams: Count = 1
    max_pages_per_block_host: Count = 24
    max_pages_per_block_device: Count = 8
    device_cache_percent: Share | None = None
    host_cache_size: Bytes | None = None
    lora_prefetch_dir: Text | None = None
