"""Who is served in an iteration: policies and `SchedulerConfig`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from weft.executor.types.checked import Checked
from weft.executor.types.fields import instance, refused


class BatchingType(Enum):
    """STATIC: a batch is filled, and served until all of it has ended; INFLIGHT: requests come and go."""

    STATIC = 0
    INFLIGHT = 1


class CapacitySchedulerPolicy(Enum):
    """When a request is admitted.

    MAX_UTILIZATION: when there are blocks for what comes next; where they run out a request is preempted, and resumed
    later. GUARANTEED_NO_EVICT: when there are blocks for the longest answer that it may get. STATIC_BATCH: when all of
    the batch before have ended.
    """

    MAX_UTILIZATION = 0
    GUARANTEED_NO_EVICT = 1
    STATIC_BATCH = 2


class ContextChunkingPolicy(Enum):
    """Whose prompt is read when all together are too long for an iteration: the first's, or a part of each."""

    FIRST_COME_FIRST_SERVED = 0
    EQUAL_PROGRESS = 1


@dataclass(eq=False)
class SchedulerConfig(Checked):
    """Who is served in an iteration. A `context_chunking_policy` of None is FIRST_COME_FIRST_SERVED."""

    capacity_scheduler_policy: CapacitySchedulerPolicy = instance(
        CapacitySchedulerPolicy, default=CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    )
    context_chunking_policy: ContextChunkingPolicy | None = instance(ContextChunkingPolicy, default=None)
    dynamic_batch_config: None = refused(
        "batch limits do not tune themselves; give max_batch_size and max_num_tokens"
    )
