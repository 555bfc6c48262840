"""Scheduling policies and `SchedulerConfig`."""

from __future__ import annotations

from enum import Enum

from weft.executor.types.fields import ByName, Count
from weft.executor.types.settings import Settings


class BatchingType(ByName, Enum):
    """STATIC: a batch runs until all of its requests have ended. INFLIGHT: requests join and leave at any iteration."""

    STATIC = 0
    INFLIGHT = 1


class CapacitySchedulerPolicy(ByName, Enum):
    """The condition for the admission of a request.

    - MAX_UTILIZATION: there are blocks for the next tokens. If blocks run out, a request is preempted and resumed
    later.
    - GUARANTEED_NO_EVICT: there are blocks for the longest possible answer.
    - STATIC_BATCH: all requests of the previous batch have ended.
    """

    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class ContextChunkingPolicy(ByName, Enum):
    """The choice of prompts to prefill if all of them together exceed an iteration's tokens. FIRST_COME_FIRST_SERVED:
    one prompt after another. EQUAL_PROGRESS: a chunk of each prompt; it needs
    `ExecutorConfig.enable_chunked_context`."""

    FIRST_COME_FIRST_SERVED = 0
    EQUAL_PROGRESS = 1


class DynamicBatchConfig(Settings):
    """Settings of the tuner. It adapts the batch size and the tokens of an iteration to the mean prompt and answer
    lengths of the last `dynamic_batch_moving_average_window` requests."""

    enable_batch_size_tuning: bool = False
    enable_max_num_tokens_tuning: bool = False
    dynamic_batch_moving_average_window: Count = 128


class SchedulerConfig(Settings):
    """The scheduling of requests. A `context_chunking_policy` of None is FIRST_COME_FIRST_SERVED."""

    capacity_scheduler_policy: CapacitySchedulerPolicy = CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    context_chunking_policy: ContextChunkingPolicy | None = None
    dynamic_batch_config: DynamicBatchConfig | None = None
