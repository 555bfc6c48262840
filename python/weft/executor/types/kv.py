"""Keys and values: the cache's size and reuse, and how long what a request leaves there is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any, ClassVar

from weft.core import Kind
from weft.errors import InputError
from weft.executor.types.checked import Checked
from weft.executor.types.fields import (
    count,
    count_parser,
    duration_ms,
    flag,
    instances,
    number,
    refused,
    required,
    seconds,
)

DEFAULT_RETENTION_PRIORITY = 35

_NO_HOST_CACHE = "keys and values stay on the device; leave it out, and size the cache with max_tokens"
_NO_WINDOW = "attention reaches over the whole text; leave it out"


@dataclass(eq=False)
class KvCacheConfig(Checked):
    """The cache of keys and values. It holds `max_tokens` tokens (default: every slot at full length), in blocks of
    `tokens_per_block`.

    With `enable_block_reuse` the blocks of a finished request are found again by requests whose prompts begin the same;
    with `enable_partial_reuse` so is the part of a block that is the same, by a copy; without `copy_on_partial_reuse`
    only a block that nobody else holds is.
    """

    enable_block_reuse: bool = flag(True)
    max_tokens: int | None = count(None)
    max_attention_window: Sequence[int] | None = refused(_NO_WINDOW)
    sink_token_length: int | None = refused(_NO_WINDOW)
    free_gpu_memory_fraction: float | None = refused("give the number of tokens as max_tokens")
    host_cache_size: int | None = refused(_NO_HOST_CACHE)
    onboard_blocks: bool = refused(_NO_HOST_CACHE, default=True)
    cross_kv_cache_fraction: float | None = refused("models have no encoder, and so no cross attention")
    secondary_offload_min_priority: int | None = refused(_NO_HOST_CACHE)
    event_buffer_max_size: int = refused(
        "no events are kept; Executor.get_latest_iteration_stats counts blocks", default=0
    )
    enable_partial_reuse: bool = flag(True)
    copy_on_partial_reuse: bool = flag(True)
    use_uvm: bool = refused(_NO_HOST_CACHE, default=False)
    attention_dp_events_gather_period_ms: int = refused(
        "there is one rank, and no events are kept", default=5
    )
    max_gpu_total_bytes: int = refused("give the number of tokens as max_tokens", default=0)
    runtime_defaults: None = refused("there is no built engine to take defaults from")
    tokens_per_block: int = count(16)


def _priority() -> Any:
    """How long blocks are kept: 0 is evicted first, 100 last."""
    return number(Kind.INTEGER, 0, 100, "0 to 100", default=DEFAULT_RETENTION_PRIORITY)


@dataclass(eq=False)
class TokenRangeRetentionConfig(Checked):
    """The blocks of the prompt's tokens from `token_start` up to `token_end` (None: the prompt's end) are kept with
    `priority`, 0 (evicted first) to 100, for `duration_ms` after their last use, then with the default (None: always).
    """

    token_start: int = field(metadata=required(count_parser(0)))
    token_end: int | None = count(None)
    priority: int = _priority()
    duration_ms: float | timedelta | None = duration_ms()

    def check(self) -> None:
        super().check()
        if self.token_end is not None and self.token_end <= self.token_start:
            raise InputError(
                f"token_end is {self.token_end}; it must be above token_start, {self.token_start} (None: the end)"
            )

    @property
    def duration_s(self) -> float | None:
        """`duration_ms` in seconds."""
        return seconds(self.duration_ms)


@dataclass(eq=False)
class KvCacheRetentionConfig(Checked):
    """How long the blocks that a request leaves in the cache are kept: by ranges of its prompt, which must not overlap,
    and with `decode_retention_priority` for `decode_duration_ms` those of its answer. Elsewhere the priority is 35.
    """

    token_range_retention_configs: Sequence[TokenRangeRetentionConfig] = instances(TokenRangeRetentionConfig)
    decode_retention_priority: int = _priority()
    decode_duration_ms: float | timedelta | None = duration_ms()
    transfer_mode: str = refused(_NO_HOST_CACHE, default="DRAM")
    directory: str | None = refused(_NO_HOST_CACHE)

    TokenRangeRetentionConfig: ClassVar[type[TokenRangeRetentionConfig]] = TokenRangeRetentionConfig

    def check(self) -> None:
        super().check()
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
