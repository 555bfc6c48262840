"""Keys and values: the cache's size and reuse, and how long what a request leaves there is kept."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from weft.core import Kind
from weft.errors import InputError
from weft.executor.types.fields import Count, Milliseconds, NotNegative, Several, Within, refused, seconds
from weft.executor.types.settings import Settings

DEFAULT_RETENTION_PRIORITY = 35
Priority = Annotated[int, Within(Kind.INTEGER, 0, 100, "0 to 100")]
"""How long blocks are kept: 0 is evicted first, 100 last."""


class KvCacheConfig(Settings):
    """The cache of keys and values. It holds `max_tokens` tokens (default: every slot at full length), in blocks of
    `tokens_per_block`.

    With `enable_block_reuse` the blocks of a finished request are found again by requests whose prompts begin the same;
    with `enable_partial_reuse` so is the part of a block that is the same, by a copy; without `copy_on_partial_reuse`
    only a block that nobody else holds is.
    """

    enable_block_reuse: bool = True
    max_tokens: Count | None = None
    max_attention_window: None = refused()
    sink_token_length: None = refused()
    free_gpu_memory_fraction: None = refused()
    host_cache_size: None = refused()
    onboard_blocks: Literal[True] = refused(True)
    cross_kv_cache_fraction: None = refused()
    secondary_offload_min_priority: None = refused()
    event_buffer_max_size: Literal[0] = refused(0)
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    use_uvm: Literal[False] = refused(False)
    attention_dp_events_gather_period_ms: Literal[5] = refused(5)
    max_gpu_total_bytes: Literal[0] = refused(0)
    runtime_defaults: None = refused()
    tokens_per_block: Count = 16


class TokenRangeRetentionConfig(Settings):
    """The blocks of the prompt's tokens from `token_start` up to `token_end` (None: the prompt's end) are kept with
    `priority`, 0 (evicted first) to 100, for `duration_ms` after their last use, then with the default (None: always).
    """

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
    """How long the blocks that a request leaves in the cache are kept: by ranges of its prompt, which must not overlap,
    and with `decode_retention_priority` for `decode_duration_ms` those of its answer. Elsewhere the priority is 35.
    """

    token_range_retention_configs: Several[TokenRangeRetentionConfig] = ()
    decode_retention_priority: Priority = DEFAULT_RETENTION_PRIORITY
    decode_duration_ms: Milliseconds | None = None
    transfer_mode: Literal["DRAM"] = refused("DRAM")
    directory: None = refused()

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
