"""Statistics of an executor: one `IterationStats` per iteration, and one `RequestStats` per request and iteration."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from weft.executor.types.fields import ByName
from weft.executor.types.plain import Plain


class Stats(Plain):
    """Base of all statistics."""

    def to_json_str(self) -> str:
        """The fields as one line of JSON with TensorRT-LLM's keys, such as `iterLatencyMS` for `iter_latency_ms`.
        `to_json` uses the fields' names."""
        return json.dumps(_in_camel_case(self.to_dict()))


_KEYS = {
    "iter_latency_ms": "iterLatencyMS",
    "new_active_requests_queue_latency_ms": "newActiveRequestsQueueLatencyMS",
    "model_latency_ms": "modelLatencyMS",
    "grammar_latency_ms": "grammarLatencyMS",
    "kv_cache_transfer_ms": "kvCacheTransferMS",
    "specdec_stats": "specDecodingStats",
}
"""Keys that differ from the field's name in camel case."""


def _in_camel_case(value: Any) -> Any:
    if isinstance(value, dict):
        return {_KEYS.get(key) or _camel(key): _in_camel_case(held) for key, held in value.items()}
    return [_in_camel_case(held) for held in value] if isinstance(value, list) else value


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


@dataclass
class KvCacheStats(Stats):
    """The blocks of the KV cache. `max_num_blocks`, `free_num_blocks` and `used_num_blocks` are current values; free
    blocks include cached ones that no request holds. The other counts are totals since the executor was made: blocks
    allocated or reused (`alloc_total_blocks`), allocated, reused, and missed. A missed block is a block of a prompt
    that was not cached."""

    max_num_blocks: int = 0
    free_num_blocks: int = 0
    used_num_blocks: int = 0
    tokens_per_block: int = 0
    alloc_total_blocks: int = 0
    alloc_new_blocks: int = 0
    reused_blocks: int = 0
    missed_blocks: int = 0
    cache_hit_rate: float = 0.0


@dataclass
class StaticBatchingStats(Stats):
    """An iteration under STATIC_BATCH. `empty_gen_slots` are the slots without an active request."""

    num_scheduled_requests: int = 0
    num_context_requests: int = 0
    num_ctx_tokens: int = 0
    num_gen_tokens: int = 0
    empty_gen_slots: int = 0


@dataclass
class InflightBatchingStats(Stats):
    """An iteration of in-flight batching: requests in prefill (context), in decoding (gen) and preempted (paused)."""

    num_scheduled_requests: int = 0
    num_context_requests: int = 0
    num_gen_requests: int = 0
    num_paused_requests: int = 0
    num_ctx_tokens: int = 0
    micro_batch_id: int = 0
    avg_num_decoded_tokens_per_iter: float = 0.0


@dataclass
class SpecDecodingStats(Stats):
    """The drafts verified and accepted in an iteration, counted as in `OutputStats`. `acceptance_length` is the mean
    number of new tokens of a request with drafts. `draft_overhead` is always 0.0, because drafting is not timed
    apart."""

    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_requests_with_draft_tokens: int = 0
    acceptance_length: float = 0.0
    iter_latency_ms: float = 0.0
    draft_overhead: float = 0.0


@dataclass
class IterationStats(Stats):
    """One iteration. Times are in milliseconds, memory in bytes; `timestamp` is "%m-%d-%Y %H:%M:%S.%f".

    - `new_active_requests_queue_latency_ms`: the sum of the waits of the requests admitted in this iteration.
    - `num_active_requests` held a slot at the iteration's end, or until they left in it. `num_compiling_requests` wait
      for their guide, or for their matcher to start.
    - Limits: the configured ones (static), those that the tuner of `DynamicBatchConfig` recommends (0 without a
      tuner, or before it has seen a request), and those in effect (runtime).
    - `model_latency_ms`: the time that the host waited for the device. `grammar_latency_ms`: the time that grammars
      took in this iteration, on all threads together.
    - Totals since the executor was made: `guide_cache_hits` and `guide_cache_misses` of compiled guides, and
      `num_forgotten_requests`, which had ended and whose responses were not taken in time
      (`ExecutorConfig.max_unread_bytes`).
    """

    timestamp: str = ""
    iter: int = 0
    iter_latency_ms: float = 0.0
    new_active_requests_queue_latency_ms: float = 0.0
    num_new_active_requests: int = 0
    num_active_requests: int = 0
    num_queued_requests: int = 0
    num_completed_requests: int = 0
    max_num_active_requests: int = 0
    max_batch_size_static: int = 0
    max_batch_size_tuner_recommended: int = 0
    max_batch_size_runtime: int = 0
    max_num_tokens_static: int = 0
    max_num_tokens_tuner_recommended: int = 0
    max_num_tokens_runtime: int = 0
    gpu_mem_usage: int = 0
    cpu_mem_usage: int = 0
    pinned_mem_usage: int = 0
    kv_cache_stats: KvCacheStats | None = None
    cross_kv_cache_stats: KvCacheStats | None = None
    static_batching_stats: StaticBatchingStats | None = None
    inflight_batching_stats: InflightBatchingStats | None = None
    specdec_stats: SpecDecodingStats | None = None
    model_latency_ms: float = 0.0
    grammar_latency_ms: float = 0.0
    num_compiling_requests: int = 0
    guide_cache_hits: int = 0
    guide_cache_misses: int = 0
    num_forgotten_requests: int = 0


class RequestStage(ByName, Enum):
    """The stage of a request. ENCODER_IN_PROGRESS does not occur, because models have no encoder."""

    QUEUED = 0
    ENCODER_IN_PROGRESS = 1
    CONTEXT_IN_PROGRESS = 2
    GENERATION_IN_PROGRESS = 3
    GENERATION_COMPLETE = 4


@dataclass
class DisServingRequestStats(Stats):
    """The cost of a KV cache transfer to another executor. weft has no such transfers."""

    kv_cache_transfer_ms: float = 0.0
    kv_cache_size: int = 0


@dataclass
class RequestStats(Stats):
    """One request at an iteration's end. `scheduled`: it ran in the iteration. `paused`: it was preempted.
    `context_prefill_position` tokens of its prompt are prefilled. `dis_serving_stats` is always None."""

    id: int = 0
    stage: RequestStage = RequestStage.QUEUED
    context_prefill_position: int = 0
    num_generated_tokens: int = 0
    avg_num_decoded_tokens_per_iter: float = 0.0
    scheduled: bool = False
    paused: bool = False
    dis_serving_stats: DisServingRequestStats | None = None
    alloc_total_blocks_per_request: int = 0
    alloc_new_blocks_per_request: int = 0
    reused_blocks_per_request: int = 0
    missed_blocks_per_request: int = 0
    kv_cache_hit_rate_per_request: float = 0.0


@dataclass
class RequestStatsPerIteration(Stats):
    """The requests of iteration `iter`."""

    iter: int = 0
    request_stats: list[RequestStats] = field(default_factory=list)
