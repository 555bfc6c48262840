"""The times of a request are moments of one clock, in their order, and the same wherever they are told."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from support.executor import request, until_final
from weft import LLM, EngineConfig, Guide, SamplingParams
from weft.core import OutputStats
from weft.executor import Executor, OutputConfig, SamplingConfig


def moments(stats: OutputStats) -> list[float]:
    found = (stats.submitted_at, stats.guide_ready_at, stats.scheduled_at, stats.first_token_at)
    return [moment for moment in (*found, stats.last_token_at, stats.ended_at) if moment is not None]


@pytest.mark.parametrize("guide", [None, Guide.regex("[a-z]{9,}")])
def test_moments_are_in_order(guide: Guide | None) -> None:
    before = time.perf_counter()
    with LLM(device="cpu", engine=EngineConfig(max_batch=1)) as llm:
        outputs = llm.generate(["Text: A"] * 2, guide=guide, sampling=SamplingParams(max_tokens=6))
    after = time.perf_counter()
    for output in outputs:
        stats = output.stats
        found = moments(stats)
        assert len(found) == (5 if guide is None else 6)
        assert [before, *found, after] == sorted([before, *found, after])
        assert stats.last_token_at > stats.first_token_at
        assert stats.decode_tokens_per_second == 5 / (stats.last_token_at - stats.first_token_at)
        assert stats.tokens_per_second == 6 / (stats.last_token_at - stats.scheduled_at)
        assert stats.time_to_first_token_s == stats.first_token_at - stats.submitted_at
        assert stats.total_s == stats.ended_at - stats.submitted_at
    first, second = (output.stats for output in outputs)
    assert second.scheduled_at >= first.last_token_at  # there is one slot


def test_one_token_has_no_speed_behind_it() -> None:
    with LLM(device="cpu") as llm:
        stats = llm.generate("Text: A", sampling=SamplingParams(max_tokens=1)).stats
    assert stats.first_token_at == stats.last_token_at and stats.tokens_per_second > 0
    assert stats.decode_tokens_per_second == 0


def test_nothing_that_did_not_happen_has_a_time() -> None:
    stats = OutputStats(submitted_at=3.0)
    assert moments(stats) == [3.0]
    assert (stats.compile_s, stats.time_to_first_token_s, stats.total_s) == (0, 0, 0)
    assert (stats.tokens_per_second, stats.decode_tokens_per_second) == (0, 0)


@pytest.mark.parametrize("beams", [1, 2])
def test_an_executor_tells_the_same_moments(make: Callable[..., Executor], beams: int) -> None:
    executor = make(max_beam_width=beams)
    sampling = SamplingConfig(beam_width=beams)
    one: Any = request(5, sampling_config=sampling, output_config=OutputConfig(return_perf_metrics=True))
    before = time.perf_counter() - 1e-6
    (response,) = until_final(executor, executor.enqueue_request(one))
    after = time.perf_counter() + 1e-6  # moments are whole microseconds
    times = response.result.request_perf_metrics.timing_metrics
    moments = [times.arrival_time, times.first_scheduled_time, times.first_token_time, times.last_token_time]
    found = [moment.total_seconds() for moment in moments]
    assert [before, *found, after] == sorted([before, *found, after])
    assert times.last_token_time > times.first_token_time
    metrics = response.result.request_perf_metrics
    assert metrics.last_iter > metrics.first_iter
