"""Statistics of iterations and requests: each once, bounded, as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from support.executor import answer, request, until_final
from weft import Speculation
from weft.engine.stats import KvUsage
from weft.executor import (
    BatchingType,
    DynamicBatchConfig,
    Executor,
    IterationStats,
    RequestStage,
    SchedulerConfig,
)
from weft.executor.stats import kv_stats


def settled(executor: Executor) -> list[IterationStats]:
    """Those of everything so far, with the iteration that tells that nothing is left."""
    taken: list[IterationStats] = []
    until = time.monotonic() + 60
    while not taken or taken[-1].num_active_requests:
        assert time.monotonic() < until
        taken += executor.get_latest_iteration_stats()
    return taken


def test_five_tokens_are_six_iterations(make: Callable[..., Executor]) -> None:
    executor = make()
    assert executor.get_latest_iteration_stats() == []
    answer(executor, request(5))
    stats = settled(executor)
    assert [one.num_active_requests for one in stats] == [1] * 5 + [0]
    assert [one.iter for one in stats] == list(range(6))
    assert sum(one.num_new_active_requests for one in stats) == 1
    assert sum(one.num_completed_requests for one in stats) == 1
    first = stats[0].inflight_batching_stats
    assert first is not None and first.num_context_requests == 1
    assert all(one.iter_latency_ms > 0 and one.max_num_active_requests == 2 for one in stats)
    assert stats[0].cpu_mem_usage > 2**20
    assert (stats[0].gpu_mem_usage, stats[0].pinned_mem_usage) == (0, 0)  # of a device that is the host
    assert stats[-1].kv_cache_stats is not None and stats[-1].kv_cache_stats.used_num_blocks == 0
    assert executor.get_latest_iteration_stats() == []


def test_they_are_bounded_and_json(make: Callable[..., Executor]) -> None:
    executor = make(iter_stats_max_iterations=3, request_stats_max_iterations=2)
    answer(executor, request(20))
    stats = executor.get_latest_iteration_stats()
    assert len(stats) == 3
    data = json.loads(stats[-1].to_json())
    assert data["iter"] == stats[-1].iter
    assert IterationStats.from_json(stats[-1].to_json()) == stats[-1]
    told = executor.get_latest_request_stats()
    assert len(told) == 2
    assert json.loads(told[0].to_json())["request_stats"][0]["num_generated_tokens"] > 0
    none = make(iter_stats_max_iterations=0)
    answer(none, request(3))
    assert none.get_latest_iteration_stats() == []
    assert none.get_latest_request_stats() == []


def test_requests_pass_through_their_stages(make: Callable[..., Executor]) -> None:
    executor = make(max_batch_size=1, request_stats_max_iterations=1000)
    first, second = executor.enqueue_requests([request(6), request(3)])
    for number in (first, second):
        until_final(executor, number)
    settled(executor)
    by_request: dict[int, list[RequestStage]] = {first: [], second: []}
    tokens: dict[int, int] = {}
    for iteration in executor.get_latest_request_stats():
        for stats in iteration.request_stats:
            by_request[stats.id].append(stats.stage)
            tokens[stats.id] = stats.num_generated_tokens
            assert not stats.paused
    assert tokens == {first: 6, second: 3}
    for stages in by_request.values():
        assert stages == sorted(stages, key=lambda stage: stage.value)
        assert stages.count(RequestStage.GENERATION_COMPLETE) == 1
    assert RequestStage.QUEUED in by_request[second]
    assert RequestStage.GENERATION_IN_PROGRESS in by_request[first]


def test_drafts_are_counted(make: Callable[..., Executor]) -> None:
    executor = make(speculation=Speculation.eagle3(num_draft_tokens=3))
    answer(executor, request(30))
    drafted = [one.specdec_stats for one in settled(executor) if one.specdec_stats is not None]
    assert all(0 < one.num_draft_tokens <= 3 for one in drafted)
    assert all(1 <= one.acceptance_length <= 4 for one in drafted)
    assert all(0 <= one.num_accepted_tokens <= one.num_draft_tokens for one in drafted)
    assert sum(one.num_accepted_tokens for one in drafted) > 0
    answer(executor, request(30, num_draft_tokens=0))


def test_static_batches_have_statistics_of_their_own(make: Callable[..., Executor]) -> None:
    executor = make(batching_type=BatchingType.STATIC)
    answer(executor, request(4))
    for one in settled(executor):
        assert one.inflight_batching_stats is None
        assert one.static_batching_stats is not None


def test_shares_of_nothing() -> None:
    assert kv_stats(KvUsage()).cache_hit_rate == 0
    assert kv_stats(KvUsage(reused_pages=1, missed_pages=3)).cache_hit_rate == pytest.approx(0.25)


def test_statistics_of_requests_are_bounded_in_sum(
    make: Callable[..., Executor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many wait: the oldest iterations go, and the last one stays."""
    monkeypatch.setattr("weft.executor.stats.MAX_REQUEST_STATS", 100)
    executor = make(request_stats_max_iterations=1000, max_batch_size=1)
    numbers = executor.enqueue_requests([request(4) for _ in range(20)])
    for number in numbers:
        until_final(executor, number)
    executor.client.call(lambda: None)
    kept = executor.get_latest_request_stats()
    assert len(kept) >= 5 and sum(len(one.request_stats) for one in kept) <= 100
    assert [one.iter for one in kept] == list(range(kept[0].iter, kept[-1].iter + 1))
    executor = make(request_stats_max_iterations=3)
    for _ in range(40):  # what was taken counts no longer
        answer(executor, request(12))
        assert len(executor.get_latest_request_stats()) == 3


def test_limits_are_tuned(make: Callable[..., Executor]) -> None:
    """The statistics say what the tuner recommends, and what is in force; here the executor is smaller than either."""
    tuning = DynamicBatchConfig(True, True, 4)
    executor = make(scheduler_config=SchedulerConfig(dynamic_batch_config=tuning), max_num_tokens=600)
    until_final(executor, executor.enqueue_request(request(3)))
    until_final(executor, executor.enqueue_request(request(3)))
    last = executor.get_latest_iteration_stats()[-1]
    assert (last.max_batch_size_static, last.max_batch_size_tuner_recommended) == (2, 128)
    assert (last.max_batch_size_runtime, last.max_num_tokens_runtime) == (2, 600)
    assert last.max_num_tokens_tuner_recommended == 8192  # the prompt is longer than twice the answer
