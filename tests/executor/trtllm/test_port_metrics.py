"""Ported: what a request's answer says of its time, its blocks and its drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

import weft.executor as trtllm
from support.engine.oracle import Reference
from support.trtllm import PROMPT, answer_length, drain, half_memory, joined, reads
from weft import Speculation


def check_metrics(metrics: Any, number: int, is_last: bool, max_tokens: int) -> None:
    """The metrics that response `number` of a short request carries."""
    timing = metrics.timing_metrics
    assert timing.arrival_time < timing.first_scheduled_time < timing.first_token_time
    if is_last:
        assert timing.first_token_time < timing.last_token_time
    else:
        assert timing.last_token_time == timedelta(0)
    reads(
        metrics.kv_cache_metrics,
        num_total_allocated_blocks=1,
        num_new_allocated_blocks=1,
        num_reused_blocks=0,
        num_missed_blocks=1,
        kv_cache_hit_rate=0,
    )
    last = max_tokens - 1
    reads(metrics, first_iter=0, iter=last if is_last else number, last_iter=last if is_last else None)


@pytest.mark.parametrize("streaming", [False, True])
def test_request_perf_metrics(streaming: bool, launch: Callable[..., Any]) -> None:
    executor = launch(half_memory())
    request = trtllm.Request(
        PROMPT,
        max_tokens=5,
        streaming=streaming,
        output_config=trtllm.OutputConfig(return_perf_metrics=True),
    )
    number = executor.enqueue_request(request)
    results = drain(executor, [number])[number]
    assert len(results) == (5 if streaming else 1)
    for i, result in enumerate(results):
        check_metrics(result.request_perf_metrics, i, result.is_final, 5)
    (tokens,) = joined(results).values()
    assert len(tokens) == answer_length(len(PROMPT), 5, streaming)


def whole(executor: Any, request: Any) -> Any:
    """The result of a request that does not stream, waited for without a timeout."""
    (response,) = executor.await_responses(executor.enqueue_request(request))
    assert not response.has_error(), response.error_msg
    assert response.result.is_final
    return response.result


def test_request_perf_metrics_kv_cache(launch: Callable[..., Any]) -> None:
    """Blocks hold 32 tokens: of 4 and 32 tokens one is full, and one holds three of the four that are left."""
    executor = launch(trtllm.ExecutorConfig(1))
    first = whole(executor, trtllm.Request(PROMPT, max_tokens=32))
    again = trtllm.Request(
        first.output_token_ids[0] + PROMPT,
        max_tokens=32,
        output_config=trtllm.OutputConfig(return_perf_metrics=True),
    )
    reads(
        whole(executor, again).request_perf_metrics.kv_cache_metrics,
        num_total_allocated_blocks=0,
        num_new_allocated_blocks=0,
        num_reused_blocks=2,
        num_missed_blocks=0,
        kv_cache_hit_rate=1.0,
    )


@pytest.mark.parametrize("exclude_input_from_output", [False, True])
def test_request_perf_metrics_draft(
    exclude_input_from_output: bool,
    launch: Callable[..., Any],
    plain: Callable[[Sequence[int], int], Reference],
) -> None:
    """The first two of four drafts are right: they are verified, a token is added, and the answer ends. Here the first
    token comes one iteration before the others."""
    said = plain(PROMPT, 5).tokens
    drafts = [*said[:2], said[2] + 1, said[3] + 1]
    executor = launch(half_memory(speculation=Speculation.given(num_draft_tokens=4)))
    request = trtllm.Request(
        PROMPT,
        max_tokens=5,
        output_config=trtllm.OutputConfig(
            exclude_input_from_output=exclude_input_from_output, return_perf_metrics=True
        ),
        external_draft_tokens_config=trtllm.ExternalDraftTokensConfig(drafts),
    )
    result = whole(executor, request)
    assert result.output_token_ids[0] == ([] if exclude_input_from_output else PROMPT) + said[:3]
    metrics = result.request_perf_metrics
    timing = metrics.timing_metrics
    assert timing.arrival_time < timing.first_scheduled_time < timing.first_token_time
    assert timing.first_token_time < timing.last_token_time
    reads(metrics, first_iter=0, iter=1, last_iter=1)
    reads(
        metrics.speculative_decoding,
        acceptance_rate=0.5,
        total_accepted_draft_tokens=2,
        total_draft_tokens=4,
    )
