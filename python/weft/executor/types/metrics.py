"""Performance metrics of one request: times, KV cache blocks, drafts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from weft.executor.types.fields import Moment
from weft.executor.types.plain import Plain

NEVER = timedelta(0)
"""The time of an event that has not happened."""


@dataclass
class TimingMetrics(Plain):
    """Times on the clock `time.perf_counter`; timedelta(0) if the event has not happened. They are the times of the
    engine's `OutputStats`, rounded to microseconds.

    The request waits for its guide until `guide_ready_time` (weft's extension; timedelta(0) without a guide), then
    for a slot until `first_scheduled_time`. The time of a token is when the host has read it. `last_token_time` is
    set when the answer has ended. weft does not send KV caches to other executors, so the transfer's times and size are
    0."""

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
        """The wait for the guide in seconds; 0.0 without one."""
        return (self.guide_ready_time - self.arrival_time).total_seconds() if self.guide_ready_time else 0.0

    @property
    def time_to_first_token_s(self) -> float | None:
        """Seconds from arrival to first token, including the wait for the guide; None before the first token."""
        return (self.first_token_time - self.arrival_time).total_seconds() if self.first_token_time else None


@dataclass
class KvCacheMetrics(Plain):
    """The KV cache blocks of the request, summed over its admissions.

    `num_total_allocated_blocks` were allocated; `num_new_allocated_blocks` of them were never used before.
    `num_reused_blocks` of the prompt's blocks were cached, fully or partly. `num_missed_blocks` were not; they include
    the last, incomplete block. `kv_cache_hit_rate` is reused / (reused + missed).
    """

    num_total_allocated_blocks: int = 0
    num_new_allocated_blocks: int = 0
    num_reused_blocks: int = 0
    num_missed_blocks: int = 0
    kv_cache_hit_rate: float = 0.0


@dataclass
class SpeculativeDecodingMetrics(Plain):
    """The drafts of a request. `total_draft_tokens` were verified, and `total_accepted_draft_tokens` of them are in the
    answer. `acceptance_rate` is the share of accepted drafts, 0.0 without drafts. Both counts are over the same
    iterations, and positions without a draft do not count (`OutputStats`).
    """

    acceptance_rate: float = 0.0
    total_accepted_draft_tokens: int = 0
    total_draft_tokens: int = 0


@dataclass
class RequestPerfMetrics(Plain):
    """The metrics of one request so far. `first_iter` and `last_iter` are the numbers of the executor's iterations that
    gave its first and last token. `last_iter` is set when the answer has ended. `iter` gave the latest token."""

    timing_metrics: TimingMetrics = field(default_factory=TimingMetrics)
    kv_cache_metrics: KvCacheMetrics = field(default_factory=KvCacheMetrics)
    speculative_decoding: SpeculativeDecodingMetrics = field(default_factory=SpeculativeDecodingMetrics)
    first_iter: int | None = None
    last_iter: int | None = None
    iter: int | None = None
