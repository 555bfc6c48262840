"""What one request cost: times, blocks of the cache, drafts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from weft.executor.types.fields import Moment
from weft.executor.types.plain import Plain

NEVER = timedelta(0)
"""The moment of what did not happen."""


@dataclass
class TimingMetrics(Plain):
    """Moments, each as the time since the beginning of the clock `time.perf_counter`; timedelta(0) for what did not
    happen. They are those of the engine's `OutputStats`, in microseconds.

    The request waits for its guide until `guide_ready_time` (weft's own; timedelta(0) without one), then for a slot
    until `first_scheduled_time`. Tokens count from when the host has read them; `last_token_time` is known when the
    answer has ended. Keys and values are not sent to other executors, so that their times and size stay 0.
    """

    arrival_time: Moment = NEVER
    first_scheduled_time: Moment = NEVER
    first_token_time: Moment = NEVER
    last_token_time: Moment = NEVER
    kv_cache_transfer_start: Moment = NEVER
    kv_cache_transfer_end: Moment = NEVER
    kv_cache_size: int = 0
    guide_ready_time: Moment = NEVER

    @property
    def guide_compile_s(self) -> float:
        """How long the request waited for its guide, in seconds."""
        return (self.guide_ready_time - self.arrival_time).total_seconds() if self.guide_ready_time else 0.0

    @property
    def time_to_first_token_s(self) -> float | None:
        """From the arrival to the first token, in seconds; waiting for the guide is part of it."""
        return (self.first_token_time - self.arrival_time).total_seconds() if self.first_token_time else None


@dataclass
class KvCacheMetrics(Plain):
    """Blocks that the request took when it began to read its prompt: new ones (`num_total_allocated_blocks` counts
    them, too), and found ones, also where only a part of one was found; `num_missed_blocks` of its prompt were not, the
    last one counts that the prompt only begins. The rate is the share of what was found in both.
    """

    num_total_allocated_blocks: int = 0
    num_new_allocated_blocks: int = 0
    num_reused_blocks: int = 0
    num_missed_blocks: int = 0
    kv_cache_hit_rate: float = 0.0


@dataclass
class SpeculativeDecodingMetrics(Plain):
    """Drafts that were verified (`total_draft_tokens`), and those of them that are in the answer; the rate is the share
    of the second in the first, 0.0 where nothing was drafted. Both are of the same iterations, and a place without a
    draft is none (`OutputStats`).
    """

    acceptance_rate: float = 0.0
    total_accepted_draft_tokens: int = 0
    total_draft_tokens: int = 0


@dataclass
class RequestPerfMetrics(Plain):
    """What one request cost so far. `first_iter` and `last_iter` are the executor's iterations that gave its first and
    its last token, the latter once the answer has ended; `iter` is the present one.
    """

    timing_metrics: TimingMetrics = field(default_factory=TimingMetrics)
    kv_cache_metrics: KvCacheMetrics = field(default_factory=KvCacheMetrics)
    speculative_decoding: SpeculativeDecodingMetrics = field(default_factory=SpeculativeDecodingMetrics)
    first_iter: int | None = None
    last_iter: int | None = None
    iter: int | None = None
