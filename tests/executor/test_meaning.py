"""What the classes of the Executor API mean: sequences, durations, guides, policies, responses."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import torch

from weft import Guide, SamplingParams
from weft.errors import GuideError, InputError, RequestError
from weft.executor.types import (
    BatchingType,
    CapacitySchedulerPolicy,
    ExecutorConfig,
    FinishReason,
    GuidedDecodingBackend,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    GuideType,
    KvCacheRetentionConfig,
    Request,
    Response,
    Result,
    SamplingConfig,
    TimingMetrics,
    TokenRangeRetentionConfig,
)


def test_a_request_keeps_its_own_tokens() -> None:
    given, bias = [1, 2, 3], torch.zeros(4)
    request = Request(given, 5, bad_words=[given], embedding_bias=bias)
    given.append(4)
    bias[0] = 7.0
    assert request.input_token_ids == [1, 2, 3]
    assert request.bad_words == [[1, 2, 3]]
    assert request.embedding_bias is not None and not request.embedding_bias.any()


RANGES = [
    ([(0, 10), (10, 20)], True),
    ([(10, None), (0, 10)], True),
    ([(0, 10), (9, 20)], False),
    ([(5, None), (8, 9)], False),
    ([(0, 4), (0, 4)], False),
]


@pytest.mark.parametrize(("ranges", "is_right"), RANGES)
def test_retention_ranges_do_not_overlap(ranges: list[tuple[int, int | None]], is_right: bool) -> None:
    configs = [TokenRangeRetentionConfig(start, end) for start, end in ranges]
    assert {config.priority for config in configs} == {35}
    if is_right:
        assert KvCacheRetentionConfig(configs).token_range_retention_configs == configs
    else:
        with pytest.raises(InputError, match="overlap; give ranges that do not"):
            KvCacheRetentionConfig(configs)


def test_durations_in_seconds() -> None:
    kept = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, duration_ms=250)], decode_duration_ms=1000)
    assert kept.token_range_retention_configs[0].duration_s == 0.25
    assert kept.decode_duration_s == 1.0
    assert Request([1], 1, allotted_time_ms=timedelta(microseconds=1500)).allotted_s == 0.0015
    assert Request([1], 1).allotted_s is None


GREEDY = [
    ({}, True),
    ({"temperature": 0.0, "top_k": 5}, True),
    ({"top_k": 1, "temperature": 2.0}, True),
    ({"top_p": 0.0}, True),
    ({"temperature": 0.7}, True),
    ({"min_p": 0.5}, True),
    ({"top_k": 0, "temperature": 2.0}, True),
    ({"top_k": 1, "top_p": 0.9}, True),
    ({"top_k": 5}, False),
    ({"top_k": 5, "top_p": 0.0}, False),
    ({"top_k": 5, "temperature": 0.7, "min_p": 0.5}, False),
    ({"top_p": 1.0}, False),
    ({"top_k": 0, "top_p": 0.5}, False),
]


@pytest.mark.parametrize(("given", "is_greedy"), GREEDY)
def test_which_sampling_is_greedy(given: dict[str, Any], is_greedy: bool) -> None:
    sampling = SamplingConfig(**given, seed=3, repetition_penalty=1.5)
    assert sampling.is_greedy is is_greedy
    params = SamplingParams(**sampling.parameters())
    assert (params.temperature == 0) is is_greedy
    assert (params.seed, params.repetition_penalty, params.min_tokens) == (3, 1.5, 0)
    if not is_greedy:
        assert params.temperature == given.get("temperature", 1.0)
        assert (params.top_k, params.top_p) == (given.get("top_k", 0), given.get("top_p", 1.0) or 1.0)
        assert params.min_p == given.get("min_p", 0.0)


def test_greedy_requests_keep_their_temperature_where_it_counts() -> None:
    """For penalties that are subtracted, and for log-probabilities, the likeliest token is that of top-k 1."""
    for given, with_log_probs in (({"presence_penalty": 1.0}, False), ({}, True)):
        sampling = SamplingConfig(temperature=2.0, min_p=0.5, **given)
        params = SamplingParams(**sampling.parameters(with_log_probs=with_log_probs))
        assert (params.temperature, params.top_k, params.min_p) == (2.0, 1, 0.5)
    assert SamplingConfig(temperature=0.0, presence_penalty=1.0).parameters()["temperature"] == 0
    beams = SamplingConfig(2, temperature=2.0, top_k=5, top_p=0.5, min_p=0.5).parameters()
    assert beams["temperature"] == 2.0 and not {"top_k", "top_p", "min_p"} & set(beams)


def test_top_p_decays_without_top_k() -> None:
    decay = {"top_p": 0.9, "top_p_decay": 0.5, "top_p_min": 0.1, "top_p_reset_ids": 7}
    assert SamplingConfig(**decay).parameters().items() >= decay.items()
    assert "top_p_decay" not in SamplingConfig(top_k=5, **decay).parameters()


def test_number_of_sequences() -> None:
    assert SamplingConfig().num_sequences == 1
    assert SamplingConfig(num_return_sequences=3).num_sequences == 3
    assert SamplingConfig(4).num_sequences == 4
    assert SamplingConfig(4, num_return_sequences=2).num_sequences == 2


def test_guides() -> None:
    assert GuidedDecodingParams(GuideType.JSON).to_guide() == Guide.json()
    texts = {
        GuideType.JSON_SCHEMA: ('{"type": "integer"}', Guide.json_schema),
        GuideType.REGEX: ("[0-9]+", Guide.regex),
        GuideType.EBNF_GRAMMAR: ('root ::= "a"', Guide.ebnf),
    }
    for kind, (text, maker) in texts.items():
        assert GuidedDecodingParams(kind, text).to_guide() == maker(text)
    tag = {"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}
    structural = GuidedDecodingParams(GuideType.STRUCTURAL_TAG, json.dumps(tag))
    assert structural.to_guide() == Guide.structural_tag(tag)
    with pytest.raises(GuideError):
        GuidedDecodingParams(GuideType.JSON_SCHEMA, "{").to_guide()
    handle = GuidedDecodingParams.handle("invoice")
    assert (handle.guide_type, handle.guide) == (GuideType.HANDLE, "invoice")
    with pytest.raises(InputError, match="'invoice' is kept by the executor"):
        handle.to_guide()


def test_numbers_of_enums_are_those_of_tensorrt_llm() -> None:
    reasons = "NOT_FINISHED END_ID STOP_WORDS LENGTH TIMED_OUT CANCELLED"
    assert [(reason.name, int(reason)) for reason in FinishReason] == list(
        zip(reasons.split(), range(6), strict=True)
    )
    guides = "JSON JSON_SCHEMA REGEX EBNF_GRAMMAR STRUCTURAL_TAG"
    assert [GuideType(number).name for number in range(5)] == guides.split()
    assert GuidedDecodingParams.GuideType is GuideType
    assert GuidedDecodingConfig.GuidedDecodingBackend is GuidedDecodingBackend
    assert KvCacheRetentionConfig.TokenRangeRetentionConfig is TokenRangeRetentionConfig


def test_policy_in_force() -> None:
    assert ExecutorConfig().policy is CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    assert ExecutorConfig(batching_type=BatchingType.STATIC).policy is CapacitySchedulerPolicy.STATIC_BATCH


def test_a_response_holds_a_result_or_an_error() -> None:
    result = Result(is_final=True, context_logits=torch.zeros(1, 2), generation_logits=torch.zeros(1, 1, 2))
    good, bad = Response(3, result, client_id=7), Response(4, error_msg="no such guide")
    assert (good.has_error(), good.result, good.client_id) == (False, result, 7)
    assert (bad.has_error(), bad.error_msg, bad.client_id) == (True, "no such guide", None)
    with pytest.raises(InputError, match="request 3 has no error"):
        _ = good.error_msg
    with pytest.raises(RequestError, match="request 4 has no result: no such guide"):
        _ = bad.result
    for given in ({}, {"result": result, "error_msg": "both"}):
        with pytest.raises(InputError, match="either a Result or an error message"):
            Response(1, **given)  # type: ignore[arg-type]
    for response in (good, bad):
        response.clear_context_logits()
        response.clear_generation_logits()
    assert (result.context_logits, result.generation_logits) == (None, None)


def test_time_to_the_first_token_begins_at_the_arrival() -> None:
    times = TimingMetrics(
        arrival_time=timedelta(seconds=10),
        guide_ready_time=timedelta(seconds=12),
        first_token_time=timedelta(seconds=12.5),
    )
    assert (times.guide_compile_s, times.time_to_first_token_s) == (2.0, 2.5)
    unguided = TimingMetrics(arrival_time=timedelta(seconds=10), first_token_time=timedelta(seconds=12.5))
    assert (unguided.guide_compile_s, unguided.time_to_first_token_s) == (0.0, 2.5)
    assert TimingMetrics(arrival_time=timedelta(seconds=10)).time_to_first_token_s is None
