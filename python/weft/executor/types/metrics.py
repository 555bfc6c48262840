"""What one request cost: times, blocks of the cache, drafts."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.executor.types.plain import Plain


@dataclass
class TimingMetrics(Plain):
    """Moments, in seconds of `time.perf_counter`'s clock; None for what did not happen. They are those of the engine's
    `OutputStats`.

    The request waits for its guide until `guide_ready_time` (None without one), then for a slot until
    `first_scheduled_time`. Tokens count from when the host has read them.
    """

    arrival_time: float = 0.0
    guide_ready_time: float | None = None
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None

    @property
    def guide_compile_s(self) -> float:
        """How long the request waited for its guide, in seconds."""
        return 0.0 if self.guide_ready_time is None else self.guide_ready_time - self.arrival_time

    @property
    def time_to_first_token_s(self) -> float | None:
        """From the arrival to the first token, in seconds; waiting for the guide is part of it."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass
class KvCacheMetrics(Plain):
    """Blocks that the request took: in all, fresh, found again; `num_missed_blocks` of its prompt were not found."""

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
class PerfMetrics(Plain):
    """What one request cost (TensorRT-LLM's RequestPerfMetrics). `first_iter` and `last_iter` are the executor's
    iterations that gave its first and its last token, `iter` the present one.
    """

    timing_metrics: TimingMetrics = field(default_factory=TimingMetrics)
    kv_cache_metrics: KvCacheMetrics = field(default_factory=KvCacheMetrics)
    speculative_decoding: SpeculativeDecodingMetrics = field(default_factory=SpeculativeDecodingMetrics)
    first_iter: int | None = None
    last_iter: int | None = None
    iter: int | None = None
