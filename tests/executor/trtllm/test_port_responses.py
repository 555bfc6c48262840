"""Ported: results, responses and statistics, made by hand."""

from __future__ import annotations

import json
from typing import Any

import torch

import weft.executor as trtllm
from support.trtllm import full_result, reads


def assigned(thing: Any, **values: Any) -> Any:
    """An object that takes its values by assignment, and reads them back."""
    for name, value in values.items():
        setattr(thing, name, value)
    reads(thing, **values)
    return thing


def test_result() -> None:
    result = full_result()
    logits = torch.ones(1, 4, 100)
    result.additional_outputs = [trtllm.AdditionalOutput("topKLogits", logits)]
    assert result.request_perf_metrics.last_iter == 33
    (output,) = result.additional_outputs
    reads(output, name="topKLogits", output=logits)


def test_response() -> None:
    response = trtllm.Response(0, "error")
    reads(response, request_id=0, error_msg="error")
    assert response.has_error()

    result = assigned(trtllm.Result(), is_final=True, output_token_ids=[[1, 2, 3]])
    response = trtllm.Response(1, result)
    reads(response, request_id=1)
    assert not response.has_error()
    reads(response.result, is_final=True, output_token_ids=[[1, 2, 3]])


def test_iteration_stats() -> None:
    stats = assigned(
        trtllm.IterationStats(),
        timestamp="01:23:56",
        iter=1,
        iter_latency_ms=100,
        num_active_requests=2,
        num_queued_requests=10,
        max_num_active_requests=3,
        gpu_mem_usage=1024,
        cpu_mem_usage=2048,
        pinned_mem_usage=4096,
    )
    written = json.loads(stats.to_json_str())
    names = {
        "timestamp": "timestamp",
        "iter": "iter",
        "iterLatencyMS": "iter_latency_ms",
        "newActiveRequestsQueueLatencyMS": "new_active_requests_queue_latency_ms",
        "numActiveRequests": "num_active_requests",
        "numQueuedRequests": "num_queued_requests",
        "numCompletedRequests": "num_completed_requests",
        "maxNumActiveRequests": "max_num_active_requests",
        "gpuMemUsage": "gpu_mem_usage",
        "cpuMemUsage": "cpu_mem_usage",
        "pinnedMemUsage": "pinned_mem_usage",
    }
    for key, name in names.items():
        assert written[key] == getattr(stats, name), key
    for key in ("kvCacheStats", "staticBatchingStats", "inflightBatchingStats"):
        assert written[key] is None, key


def test_request_stats() -> None:
    stats = assigned(
        trtllm.RequestStats(),
        id=1,
        stage=trtllm.RequestStage.CONTEXT_IN_PROGRESS,
        context_prefill_position=2,
        num_generated_tokens=3,
        avg_num_decoded_tokens_per_iter=2.5,
        scheduled=True,
        paused=False,
    )
    written = json.loads(stats.to_json_str())
    expected: dict[str, Any] = {
        "id": 1,
        "stage": "CONTEXT_IN_PROGRESS",
        "contextPrefillPosition": 2,
        "numGeneratedTokens": 3,
        "avgNumDecodedTokensPerIter": 2.5,
        "scheduled": True,
        "paused": False,
        "disServingStats": None,
    }
    assert {key: written[key] for key in expected} == expected


def test_request_stats_per_iteration() -> None:
    one = assigned(trtllm.RequestStats(), id=1)
    stats = assigned(trtllm.RequestStatsPerIteration(), iter=1)
    stats.request_stats = [one]
    written = json.loads(stats.to_json_str())
    assert written["iter"] == 1
    assert [entry["id"] for entry in written["requestStats"]] == [1]
