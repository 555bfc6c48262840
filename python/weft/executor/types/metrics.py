"""Performance metrics of one request: times, KV cache blocks, drafts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from weft.executor.types.fields import Moment
from weft.executor.types.plain import Plain

NEVER = timedelta(0)
"""The moment of an event that has not happened."""


@dataclass
class TimingMetrics(Plain):
    """Moments of the clock `time.perf_counter`, each as the time since its start; timedelta(0) if not happened. They
    are those of the engine's `OutputStats`, rounded to microseconds.

    The request waits for its guide until `guide_ready_time` (weft's extension; timedelta(0) without a guide), then
    for a slot until `first_scheduled_time`. The moment of a token is when the host has read it. `last_token_time` is
    set once the answer has ended. weft does not send keys and values to other executors, so the transfer's times and
    size are 0."""

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
        """The time from arrival to first token in seconds, with the wait for the guide; None before the first token."""
        return (self.first_token_time - self.arrival_time).total_seconds() if self.first_token_time else None


@dataclass
class KvCacheMetrics(Plain):
    """The KV cache blocks of the request at its admission.

    `num_total_allocated_blocks` were allocated, of which `num_new_allocated_blocks` were never used before. Of the
    prompt's blocks, `num_reused_blocks` were cached, whole or in part, and `num_missed_blocks` were not, the last,
    incomplete one included. `kv_cache_hit_rate` is the share of reused blocks among these two.
    """

    num_total_allocated_blocks: int = 0
    num_new_allocated_blocks: int = 0
    num_reused_blocks: int = 0
    num_missed_blocks: int = 0
    kv_cache_hit_rate: float = 0.0


@dataclass
class SpeculativeDecodingMetrics(Plain):
    """`total_draft_tokens` drafts were verified, and `total_accepted_draft_tokens` of them are in the answer.
    `acceptance_rate` is the share of accepted drafts, 0.0 without drafts. Both counts are of the same iterations, and
    positions without a draft do not count (`OutputStats`).
    """

    acceptance_rate: float = 0.0
    total_accepted_draft_tokens: int = 0
    total_draft_tokens: int = 0


@dataclass
class RequestPerfMetrics(Plain):
    """The metrics of one request so far. `first_iter` and `last_iter` are the executor's iterations of its first and
    its last token; `last_iter` is set once the answer has ended. `iter` is the current iteration."""

    timing_metrics: TimingMetrics = field(default_factory=TimingMetrics)
    kv_cache_metrics: KvCacheMetrics = field(default_factory=KvCacheMetrics)
    speculative_decoding: SpeculativeDecodingMetrics = field(default_factory=SpeculativeDecodingMetrics)
    first_iter: int | None = None
    last_iter: int | None = None
    iter: int | None = None
