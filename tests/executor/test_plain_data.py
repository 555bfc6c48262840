"""The classes of the Executor API as plain data: JSON both ways, pickle and copies, and data that is damaged."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
import torch

from executor.test_types import BEAMS, CHECKED, form, make
from weft import Speculation
from weft.errors import InputError
from weft.executor.types import (
    AdditionalModelOutput,
    AdditionalOutput,
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    FinishReason,
    FlightRecorderConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    GuideType,
    InflightBatchingStats,
    IterationStats,
    KvCacheConfig,
    KvCacheRetentionConfig,
    KvCacheStats,
    LogitsPostProcessorConfig,
    OutputConfig,
    Request,
    RequestPerfMetrics,
    RequestStage,
    RequestStats,
    RequestStatsPerIteration,
    Response,
    Result,
    SamplingConfig,
    SchedulerConfig,
    SpecDecodingStats,
    StaticBatchingStats,
    TimingMetrics,
    TokenRangeRetentionConfig,
)
from weft.executor.types.settings import Settings


def double(request_id: int, logits: torch.Tensor, tokens: Any, stream: Any, client_id: int | None) -> None:
    """A logits post-processor that pickle can find."""
    logits.mul_(2)


FULL_REQUEST = Request(
    [1, 2, 3],
    40,
    streaming=True,
    sampling_config=SamplingConfig(top_k=4, temperature=0.5, seed=9, num_return_sequences=2),
    output_config=OutputConfig(
        return_log_probs=True, top_log_probs=2, additional_model_outputs=[AdditionalModelOutput("a", True)]
    ),
    end_id=5,
    pad_id=0,
    bad_words=[[1, 2], "no"],
    stop_words=["stop", [7]],
    embedding_bias=torch.tensor([0.5, -math.inf, 1.0], dtype=torch.float64),
    external_draft_tokens_config=ExternalDraftTokensConfig([5, 6]),
    kv_cache_retention_config=KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 2, 80, 1000)], 20, 5),
    logits_post_processor_name="mine",
    client_id=12,
    return_all_generated_tokens=True,
    priority=0.75,
    guided_decoding_params=GuidedDecodingParams(GuideType.REGEX, "a+"),
    allotted_time_ms=1500,
    num_draft_tokens=3,
)

FULL_CONFIG = ExecutorConfig(
    scheduler_config=SchedulerConfig(
        CapacitySchedulerPolicy.MAX_UTILIZATION, ContextChunkingPolicy.EQUAL_PROGRESS
    ),
    kv_cache_config=KvCacheConfig(
        max_tokens=4096, enable_partial_reuse=False, tokens_per_block=32, kv_cache_dtype="int8"
    ),
    enable_chunked_context=False,
    max_batch_size=16,
    max_num_tokens=512,
    max_queue_size=100,
    speculation=Speculation.eagle3("head", num_draft_tokens={1: 5, 8: 2}),
    guided_decoding_config=GuidedDecodingConfig(),
    additional_model_outputs=[AdditionalModelOutput("TopKLogits")],
    gather_generation_logits=True,
    overlap=False,
    graphs="split",
    activation_dtype="float32",
    max_seq_len=2048,
    flight_recorder=FlightRecorderConfig(64, "records"),
)

FULL_RESULT = Result(
    is_final=True,
    output_token_ids=[[1, 2], [3]],
    cum_log_probs=[-1.5, -2.0],
    log_probs=[[-0.5, -1.0], [-2.0]],
    context_logits=torch.tensor([[0.5, -math.inf]]),
    generation_logits=torch.randn(2, 2, 3, dtype=torch.float32),
    finish_reasons=[FinishReason.END_ID, FinishReason.LENGTH],
    decoding_iter=4,
    sequence_index=1,
    is_sequence_final=True,
    request_perf_metrics=RequestPerfMetrics(
        TimingMetrics(timedelta(1), timedelta(microseconds=5), guide_ready_time=timedelta(hours=3)),
        first_iter=3,
    ),
    additional_outputs=[AdditionalOutput("a", torch.ones(2, 2, dtype=torch.bfloat16))],
    top_log_probs=[[{1: -0.5, 7: -3.0}, {2: -1.0}], [{}]],
)

FULL_STATS = IterationStats(
    timestamp="11-21-2026 20:46:19.000000",
    iter=5,
    iter_latency_ms=2.5,
    kv_cache_stats=KvCacheStats(max_num_blocks=10, cache_hit_rate=0.5),
    static_batching_stats=StaticBatchingStats(2),
    inflight_batching_stats=InflightBatchingStats(num_scheduled_requests=3),
    specdec_stats=SpecDecodingStats(num_draft_tokens=9, acceptance_length=2.5),
)

SENT = [
    *(make(cls) for cls in CHECKED),
    FULL_REQUEST,
    FULL_CONFIG,
    FULL_RESULT,
    BEAMS,
    Response(3, FULL_RESULT, client_id=7),
    Response(4, error_msg="no such guide"),
    FULL_STATS,
    RequestStats(3, RequestStage.GENERATION_IN_PROGRESS, scheduled=True),
    RequestStatsPerIteration(4, [RequestStats(1), RequestStats(2, RequestStage.QUEUED)]),
]


def whole(sent: Any) -> str:
    """Everything that is sent, as text that tells types apart; tensors with their kind and numbers."""
    if isinstance(sent, Response):
        held = sent.error_msg if sent.has_error() else form(sent.result)
        return f"{sent.request_id} {sent.client_id} {held}"
    return form(sent)


@pytest.mark.parametrize("sent", SENT, ids=lambda one: type(one).__name__)
def test_what_is_sent_arrives(sent: Any) -> None:
    for arrived in (
        pickle.loads(pickle.dumps(sent)),
        copy.copy(sent),
        copy.deepcopy(sent),
        type(sent).from_json(sent.to_json()),
        type(sent).from_dict(sent.to_dict()),
    ):
        assert type(arrived) is type(sent)
        assert whole(arrived) == whole(sent)
        assert arrived.to_dict() == sent.to_dict() == json.loads(sent.to_json())
        if isinstance(sent, Settings):
            assert arrived == sent
            with pytest.raises(InputError, match="has no field"):
                arrived.colour = "red"


def test_results_show_the_shape_of_tensors() -> None:
    text = repr(FULL_RESULT)
    assert "output_token_ids=[[1, 2], [3]]" in text
    assert "generation_logits=<float32 [2, 2, 3]>" in text
    assert "AdditionalOutput('a', <bfloat16 [2, 2]>)" in text
    assert "tensor(" not in repr(Response(3, FULL_RESULT)) and "Response(3, Result(" in repr(
        Response(3, FULL_RESULT)
    )


def test_functions_pickle_but_are_no_plain_data() -> None:
    request = Request([1], 1, logits_post_processor=double)
    config = LogitsPostProcessorConfig({"mine": double}, double)
    assert pickle.loads(pickle.dumps(request)).logits_post_processor is double
    assert pickle.loads(pickle.dumps(config)).processor_map == {"mine": double}
    with pytest.raises(InputError, match=r"Request\.logits_post_processor holds .* no plain data"):
        request.to_dict()
    with pytest.raises(InputError, match=r"LogitsPostProcessorConfig\.processor_map holds"):
        config.to_json()


DAMAGED: list[tuple[type, Any, str]] = [
    (SamplingConfig, {"top_q": 1}, "SamplingConfig has no field 'top_q'; it has beam_search_diversity_rate"),
    (SamplingConfig, {"top_k": -1}, "top_k is -1"),
    (SamplingConfig, [1], "made from a dict"),
    (Request, {"max_tokens": 3}, "input_token_ids"),
    (Request, {"input_token_ids": [1], "max_tokens": 3, "lora_config": {}}, "LoraConfig needs task_id"),
    (GuidedDecodingParams, {"guide_type": "XML"}, "guide_type is 'XML'; it must be one of GuideType: JSON"),
    (KvCacheRetentionConfig, {"token_range_retention_configs": [{"token_end": 3}]}, "token_start"),
    (
        ExecutorConfig,
        {"kv_cache_config": {"host_cache_size": -4}},
        "host_cache_size is -4; it must be a number of bytes",
    ),
    (ExecutorConfig, {"kv_cache_config": {"tokens": 4}}, "KvCacheConfig has no field 'tokens'; it has"),
    (
        ExecutorConfig,
        {"flight_recorder": {"iterations": 0}},
        r"flight_recorder.iterations is 0; it must be at",
    ),
    (IterationStats, {"kv_cache_stats": {"used_num_blocks": "1"}}, "kv_cache_stats.used_num_blocks is '1'"),
    (Response, {"request_id": 3}, "either a Result or an error message"),
    (Response, {"request_id": 3, "error": "a"}, "has no field 'error'"),
]


@pytest.mark.parametrize(("cls", "data", "message"), DAMAGED)
def test_damaged_data_is_refused(cls: Any, data: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cls.from_dict(data)
    with pytest.raises(InputError, match=message):
        cls.from_json(json.dumps(data))


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(InputError, match="a Request can't be read from text that is not JSON"):
        Request.from_json("{")


def test_statistics_are_whole_in_json() -> None:
    stats = json.loads(FULL_STATS.to_json())
    assert set(stats) == {field.name for field in fields(IterationStats)}
    assert stats["kv_cache_stats"]["cache_hit_rate"] == 0.5
    assert stats["cross_kv_cache_stats"] is None
    assert json.loads(RequestStats(1).to_json())["stage"] == "QUEUED"
