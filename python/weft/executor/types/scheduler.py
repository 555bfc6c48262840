"""Who is served in an iteration: policies and `SchedulerConfig`."""

from __future__ import annotations

from enum import Enum

from weft.executor.types.fields import ByName, Count
from weft.executor.types.settings import Settings


class BatchingType(ByName, Enum):
    """STATIC: a batch is filled, and served until all of it has ended; INFLIGHT: requests come and go."""

    STATIC = 0
    INFLIGHT = 1


class CapacitySchedulerPolicy(ByName, Enum):
    """When a request is admitted.

    MAX_UTILIZATION: when there are blocks for what comes next; where they run out a request is preempted, and resumed
    later. GUARANTEED_NO_EVICT: when there are blocks for the longest answer that it may get. STATIC_BATCH: when all of
    the batch before have ended.
    """

    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class ContextChunkingPolicy(ByName, Enum):
    """Whose prompt is read when all together are too long for an iteration: the first's, or a part of each."""

    FIRST_COME_FIRST_SERVED = 0
    EQUAL_PROGRESS = 1


class DynamicBatchConfig(Settings):
    """Whether an executor tunes how many requests decode at once, and how many tokens an iteration reads, by the mean
    lengths of the last `dynamic_batch_moving_average_window` requests' prompts and answers."""

    enable_batch_size_tuning: bool = False
    enable_max_num_tokens_tuning: bool = False
    dynamic_batch_moving_average_window: Count = 128


class SchedulerConfig(Settings):
    """Who is served in an iteration. A `context_chunking_policy` of None is FIRST_COME_FIRST_SERVED."""

    capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    context_chunking_policy: ContextChunkingPolicy | None = None
    dynamic_batch_config: DynamicBatchConfig | None = None
