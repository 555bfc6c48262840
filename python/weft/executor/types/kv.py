"""Settings of the KV cache: its size, its reuse, and the retention of requests' blocks."""

from __future__ import annotations

from dataclasses import KW_ONLY, field
from enum import Enum
from itertools import pairwise
from typing import Annotated, ClassVar

from weft.config import KvCacheDtype
from weft.core import ValueKind
from weft.errors import InputError
from weft.executor.types.fields import (
    ByName,
    Count,
    Milliseconds,
    NotNegative,
    Several,
    Share,
    Text,
    Within,
    seconds,
)
from weft.executor.types.settings import Settings

DEFAULT_RETENTION_PRIORITY = 35
Priority = Annotated[int, Within(ValueKind.INTEGER, 0, 100, "0 to 100")]
"""The retention priority of blocks: 0 is evicted first, and 100 last."""
Size = Annotated[int, Within(ValueKind.INTEGER, 0, 2**63 - 1, "a number of bytes, at least 0")]


class KvCacheTransferMode(ByName, Enum):
    """The method that moves blocks from the device to the host."""

    DRAM = 0
    GDS = 1
    POSIX_DEBUG_FALLBACK = 2


class RuntimeDefaults(Settings):
    """A model's defaults for fields of `KvCacheConfig` that are None."""

    max_attention_window: Several[Count] | None = None
    sink_token_length: NotNegative | None = None


class KvCacheConfig(Settings):
    """Settings of the KV cache, in blocks of `tokens_per_block` tokens, whose keys and values have the dtype
    `kv_cache_dtype` (as in `weft.EngineConfig`). These two fields are weft's extensions: TensorRT-LLM sets both when it
    builds an engine.

    Size: `max_tokens` tokens, or `free_gpu_memory_fraction` of the memory that is free after the weights are loaded
    (the device's, or on the CPU the machine's), whichever is less. `max_gpu_total_bytes` is a further limit. Without
    any of the three the cache holds every slot at full length. The fraction is 0.9 by default if `max_tokens` and
    `ExecutorConfig.max_seq_len` are both None.

    Reuse: with `enable_block_reuse`, requests whose prompts have the same prefix reuse the blocks of earlier
    requests. With `enable_partial_reuse` they also reuse a block of which only the first tokens match, by a copy.
    Without `copy_on_partial_reuse` they take such a block over, if no other request holds it and no cached block
    continues it. Evicted blocks with a priority of at least `secondary_offload_min_priority` (default 30) are kept in
    `host_cache_size` bytes of host memory, and return to the device on reuse.

    Windows: a token attends to at most `max_attention_window` tokens, itself included: the first `sink_token_length`
    tokens of the text, and the most recent ones. A list of windows repeats over the layers.

    Up to `event_buffer_max_size` block events are kept until `Executor.get_kv_cache_event_manager()` hands them out (0:
    none). `runtime_defaults` sets `max_attention_window` and `sink_token_length` if they are None.
    """

    enable_block_reuse: bool = True
    max_tokens: Count | None = None
    max_attention_window: Several[Count] | None = None
    sink_token_length: NotNegative | None = None
    free_gpu_memory_fraction: Share | None = None
    host_cache_size: Size | None = None
    onboard_blocks: bool = True
    cross_kv_cache_fraction: Share | None = None
    secondary_offload_min_priority: Priority | None = None
    event_buffer_max_size: NotNegative = 0
    _: KW_ONLY
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: bool = False
    attention_dp_events_gather_period_ms: NotNegative = 5
    runtime_defaults: RuntimeDefaults | None = None
    max_gpu_total_bytes: Size = 0
    tokens_per_block: Count = 32
    kv_cache_dtype: KvCacheDtype = "auto"

    def check(self) -> None:
        if self.runtime_defaults is not None:
            self._fill(self.runtime_defaults)
            vars(self)["runtime_defaults"] = None

    def fill_empty_fields_from_runtime_defaults(self, runtime_defaults: RuntimeDefaults) -> None:
        """Set `max_attention_window` and `sink_token_length` to these values if they are None."""
        self._fill(runtime_defaults)

    def _fill(self, defaults: RuntimeDefaults) -> None:
        for name, value in vars(defaults).items():
            if vars(self)[name] is None:
                vars(self)[name] = list(value) if isinstance(value, list) else value


class TokenRangeRetentionConfig(Settings):
    """The retention of the blocks of a prompt's tokens `token_start` to `token_end` - 1 (None: to the prompt's end).
    Their priority is `priority`, 0 (evicted first) to 100. After `duration_ms` without use it falls back to the default
    priority (None: never)."""

    token_start: NotNegative
    token_end: Count | None = None
    priority: Priority = DEFAULT_RETENTION_PRIORITY
    duration_ms: Milliseconds | None = None

    def check(self) -> None:
        if self.token_end is not None and self.token_end <= self.token_start:
            raise InputError(
                f"token_end is {self.token_end}; it must be above token_start, {self.token_start} (None: the end)"
            )

    @property
    def duration_s(self) -> float | None:
        """`duration_ms` in seconds."""
        return seconds(self.duration_ms)


class KvCacheRetentionConfig(Settings):
    """The retention of a request's blocks. `token_range_retention_configs` sets it for ranges of the prompt, which must
    not overlap; `decode_retention_priority` and `decode_duration_ms` set it for the answer. The rest of the prompt
    keeps the priority that an earlier request set, by default 35.
    """

    token_range_retention_configs: Several[TokenRangeRetentionConfig] = field(default_factory=list)
    decode_retention_priority: Priority = DEFAULT_RETENTION_PRIORITY
    decode_duration_ms: Milliseconds | None = None
    transfer_mode: KvCacheTransferMode = KvCacheTransferMode.DRAM
    directory: Text | None = None

    TokenRangeRetentionConfig: ClassVar[type[TokenRangeRetentionConfig]] = TokenRangeRetentionConfig

    def check(self) -> None:
        ranges = sorted(self.token_range_retention_configs, key=lambda one: one.token_start)
        for one, following in pairwise(ranges):
            if one.token_end is None or one.token_end > following.token_start:
                end = "the prompt's end" if one.token_end is None else one.token_end
                raise InputError(
                    f"the token ranges from {one.token_start} to {end} and from {following.token_start} overlap; "
                    "give ranges that do not"
                )

    @property
    def decode_duration_s(self) -> float | None:
        """`decode_duration_ms` in seconds."""
        return seconds(self.decode_duration_ms)
