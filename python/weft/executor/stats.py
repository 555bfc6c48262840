"""Statistics of iterations and requests. The engine's thread records them; the thread that takes them converts them."""

from __future__ import annotations

import os
import time
from collections import abc, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeVar

from weft.client.client import EngineClient
from weft.client.response_queue import ResponseQueue
from weft.config import ResolvedConfig
from weft.engine.sequence import Sequence, Stage
from weft.engine.stats import KvUsage, Limits, StepRecord
from weft.executor.types import (
    ExecutorConfig,
    InflightBatchingStats,
    IterationStats,
    KvCacheStats,
    RequestStage,
    RequestStats,
    RequestStatsPerIteration,
    SpecDecodingStats,
    StaticBatchingStats,
)
from weft.grammar.compile.cache import GuideCache

STAGES = {
    Stage.COMPILING: RequestStage.QUEUED,
    Stage.QUEUED: RequestStage.QUEUED,
    Stage.CONTEXT: RequestStage.CONTEXT_IN_PROGRESS,
    Stage.GENERATION: RequestStage.GENERATION_IN_PROGRESS,
    Stage.FINISHED: RequestStage.GENERATION_COMPLETE,
}

MAX_REQUEST_STATS = 250_000
"""The limit on `RequestStats` kept over all iterations. An iteration has one for each request, waiting ones
included."""

T = TypeVar("T")


class Noted(NamedTuple):
    """The record of a step, with the time (`time.time`) at which the history received it."""

    record: StepRecord
    ended: float


@dataclass(frozen=True)
class Gauges:
    """The sources that are read when statistics are taken. `memory` gives the bytes of device and pinned memory in use
    (`Runtime.memory`). `guides` is the cache of compiled guides, and `responses` counts forgotten requests."""

    memory: Callable[[], tuple[int, int]]
    guides: GuideCache | None
    responses: ResponseQueue


class History:
    """Keeps the statistics of an engine's last steps until they are taken. Above the limits it drops the oldest
    steps."""

    def __init__(
        self, config: ResolvedConfig, max_iterations: int, max_request_iterations: int, gauges: Gauges
    ) -> None:
        self._config = config
        self._gauges = gauges
        self._turns: deque[Noted] = deque(maxlen=max_iterations)
        self._requests: deque[RequestStatsPerIteration] = deque(maxlen=max_request_iterations)
        self._num_request_stats = 0
        self._live: list[Sequence] = []

    @classmethod
    def of(cls, client: EngineClient, config: ExecutorConfig) -> History:
        """Make the history of a client's engine, with the limits of `config`. It must not reference the client: it
        observes the client's steps, and would keep the client alive."""
        cache = client.compiler.cache if client.compiler is not None else None
        gauges = Gauges(client.built.runtime.memory, cache, client.responses)
        kept = config.iter_stats_max_iterations, config.request_stats_max_iterations
        return cls(client.built.config, *kept, gauges)

    def note(self, record: StepRecord | None, took: abc.Sequence[Sequence]) -> None:
        """Record a step. Called on the engine's thread."""
        if self._requests.maxlen:
            self._live += took
        if record is None:
            return
        if self._turns.maxlen:
            self._turns.append(Noted(record, time.time()))
        if self._requests.maxlen:
            stats = [request_stats(request, record, self._config.page_size) for request in self._live]
            self._make_room(len(stats))
            self._requests.append(RequestStatsPerIteration(record.number, stats))
            self._live = [request for request in self._live if not request.is_finished]

    def _make_room(self, num_stats: int) -> None:
        """Drop the oldest iterations until one with `num_stats` requests fits. Adds `num_stats` to the count."""
        is_full = len(self._requests) == self._requests.maxlen
        while self._requests and (is_full or self._num_request_stats + num_stats > MAX_REQUEST_STATS):
            for oldest in _drain(self._requests, 1):
                # Not below 0: another thread may take all statistics, and reset the count, at any time.
                self._num_request_stats = max(self._num_request_stats - len(oldest.request_stats), 0)
            is_full = False
        self._num_request_stats += num_stats

    def iterations(self) -> list[IterationStats]:
        """Take the statistics of iterations, oldest first. Memory use and total counters are read now, and are the same
        for all of them."""
        taken = [iteration_stats(noted, self._config) for noted in _drain(self._turns)]
        in_use, (of_device, pinned) = resident_bytes(), self._gauges.memory()
        guides, num_forgotten = self._gauges.guides, self._gauges.responses.num_forgotten
        for stats in taken:
            stats.cpu_mem_usage, stats.gpu_mem_usage, stats.pinned_mem_usage = in_use, of_device, pinned
            stats.num_forgotten_requests = num_forgotten
            if guides is not None:
                stats.guide_cache_hits, stats.guide_cache_misses = guides.num_hits, guides.num_misses
        return taken

    def requests(self) -> list[RequestStatsPerIteration]:
        """Take the statistics of requests, oldest iteration first."""
        taken = list(_drain(self._requests))
        self._num_request_stats = 0
        return taken


def iteration_stats(noted: Noted, config: ResolvedConfig) -> IterationStats:
    """Convert the record of a step."""
    record = noted.record
    limits = record.limits or Limits(config.max_batch, config.max_num_tokens)
    stats = IterationStats(
        timestamp=datetime.fromtimestamp(noted.ended).strftime("%m-%d-%Y %H:%M:%S.%f"),
        iter=record.number,
        iter_latency_ms=record.total_s * 1e3,
        new_active_requests_queue_latency_ms=record.new_active_queue_s * 1e3,
        num_new_active_requests=record.new_active,
        num_active_requests=record.active,
        num_queued_requests=record.queued,
        num_completed_requests=record.completed,
        max_num_active_requests=config.max_batch,
        max_batch_size_static=config.max_batch,
        max_batch_size_tuner_recommended=limits.recommended_batch,
        max_batch_size_runtime=limits.max_batch,
        max_num_tokens_static=config.max_num_tokens or 0,
        max_num_tokens_tuner_recommended=limits.recommended_tokens,
        max_num_tokens_runtime=limits.max_num_tokens,
        kv_cache_stats=kv_stats(record.kv),
        model_latency_ms=record.model_s * 1e3,
        grammar_latency_ms=record.grammar_s * 1e3,
        num_compiling_requests=record.compiling,
    )
    if config.policy == "static_batch":
        stats.static_batching_stats = StaticBatchingStats(
            num_scheduled_requests=len(record.context) + len(record.generation),
            num_context_requests=len(record.context),
            num_ctx_tokens=record.context_tokens,
            num_gen_tokens=record.generated_tokens,
            empty_gen_slots=config.max_batch - record.active,
        )
    else:
        stats.inflight_batching_stats = InflightBatchingStats(
            num_scheduled_requests=len(record.context) + len(record.generation),
            num_context_requests=len(record.context),
            num_gen_requests=len(record.generation),
            num_paused_requests=len(record.paused),
            num_ctx_tokens=record.context_tokens,
            avg_num_decoded_tokens_per_iter=_share(record.generated_tokens, len(record.generation)),
        )
    if record.proposed_drafts:
        stats.specdec_stats = SpecDecodingStats(
            num_draft_tokens=record.proposed_drafts,
            num_accepted_tokens=record.accepted_drafts,
            num_requests_with_draft_tokens=record.speculating,
            acceptance_length=_share(record.speculated_tokens, record.speculating),
            iter_latency_ms=record.total_s * 1e3,
        )
    return stats


def kv_stats(usage: KvUsage) -> KvCacheStats:
    """Convert the usage of the KV cache."""
    asked = usage.reused_pages + usage.missed_pages
    return KvCacheStats(
        max_num_blocks=usage.max_pages,
        free_num_blocks=usage.free_pages,
        used_num_blocks=usage.used_pages,
        tokens_per_block=usage.page_size,
        alloc_total_blocks=usage.allocated_pages + usage.reused_pages,
        alloc_new_blocks=usage.allocated_pages,
        reused_blocks=usage.reused_pages,
        missed_blocks=usage.missed_pages,
        cache_hit_rate=_share(usage.reused_pages, asked),
    )


def request_stats(request: Sequence, record: StepRecord, page_size: int) -> RequestStats:
    """The statistics of a sequence at the end of a step."""
    output = request.output
    num_tokens, num_read = len(output.token_ids), len(request.prompt)
    if not num_tokens:  # during prefill, the step's record has the number of prompt tokens read
        num_read = record.prompt_tokens_read.get(request.id, 0 if request.stage is Stage.QUEUED else num_read)
    total = -(-(num_read + num_tokens) // page_size)
    reused = output.stats.reused_tokens // page_size
    missed = max(num_read // page_size - reused, 0)
    return RequestStats(
        request.id,
        STAGES[request.stage],
        context_prefill_position=num_read,
        num_generated_tokens=num_tokens,
        avg_num_decoded_tokens_per_iter=_share(num_tokens, output.stats.iterations),
        scheduled=request.id in record.context or request.id in record.generation,
        paused=request.id in record.paused,
        alloc_total_blocks_per_request=total,
        alloc_new_blocks_per_request=max(total - reused, 0),
        reused_blocks_per_request=reused,
        missed_blocks_per_request=missed,
        kv_cache_hit_rate_per_request=_share(reused, reused + missed),
    )


def resident_bytes() -> int:
    """The resident memory of this process in bytes; 0 if the system does not report it."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return 0
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _drain(items: deque[T], most: int | None = None) -> Iterator[T]:
    """Take the items that are present now, or at most `most`, oldest first. Other threads may add and take items
    meanwhile."""
    for _ in range(len(items) if most is None else most):
        try:
            yield items.popleft()
        except IndexError:  # another thread took it
            return
