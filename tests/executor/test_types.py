"""The classes of the Executor API: what they take, what they refuse and say, and that they survive being sent."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from weft import Guide, SamplingParams, Speculation
from weft.errors import GuideError, InputError, RequestError
from weft.executor import types
from weft.executor.types import (
    AdditionalModelOutput,
    AdditionalOutput,
    BatchingType,
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    FinishReason,
    FlightRecorderConfig,
    GuidedDecodingBackend,
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
    PerfMetrics,
    Request,
    RequestStage,
    RequestStats,
    RequestStatsPerIteration,
    RequestType,
    Response,
    Result,
    SamplingConfig,
    SchedulerConfig,
    SpecDecodingStats,
    SpeculativeConfig,
    StaticBatchingStats,
    TimingMetrics,
    TokenRangeRetentionConfig,
)

DOCS = Path(__file__).parents[2] / "docs" / "executor.md"

BEAMS = SamplingConfig(4, num_return_sequences=2, length_penalty=0.5, early_stopping=1)


def double(request_id: int, logits: torch.Tensor, tokens: Any, stream: Any, client_id: int | None) -> None:
    """A logits post-processor that pickle can find."""
    logits.mul_(2)


MINIMAL: dict[type, dict[str, Any]] = {
    Request: {"input_token_ids": [1, 2], "max_tokens": 3},
    AdditionalModelOutput: {"name": "hidden_states.0"},
    ExternalDraftTokensConfig: {"tokens": [1]},
    SpeculativeConfig: {"speculation": Speculation.ngram()},
    GuidedDecodingParams: {"guide_type": GuideType.JSON},
    TokenRangeRetentionConfig: {"token_start": 0},
    FlightRecorderConfig: {"iterations": 5},
}
"""What a class must be given."""

CHECKED = [
    SamplingConfig,
    OutputConfig,
    GuidedDecodingConfig,
    KvCacheConfig,
    KvCacheRetentionConfig,
    SchedulerConfig,
    LogitsPostProcessorConfig,
    ExecutorConfig,
    *MINIMAL,
]


def make(cls: type, **given: Any) -> Any:
    return cls(**{**MINIMAL.get(cls, {}), **given})


ACCEPTED: list[tuple[type, str, Any, Any]] = [
    # class, field, what is given, what it then holds
    (SamplingConfig, "beam_width", 5, 5),
    (SamplingConfig, "top_k", 0, 0),
    (SamplingConfig, "top_p", 0, 0),
    (SamplingConfig, "top_p", 1.0, 1.0),
    (SamplingConfig, "temperature", 0, 0),
    (SamplingConfig, "seed", -(2**63), -(2**63)),
    (SamplingConfig, "min_tokens", 0, 0),
    (SamplingConfig, "min_p", 1.0, 1.0),
    (SamplingConfig, "repetition_penalty", 0.5, 0.5),
    (SamplingConfig, "beam_search_diversity_rate", 0.0, 0.0),
    (SamplingConfig, "length_penalty", 0.0, 0.0),
    (SamplingConfig, "early_stopping", 0, 0),
    (SamplingConfig, "num_return_sequences", 7, 7),
    (Request, "input_token_ids", torch.tensor([3, 4]).tolist(), (3, 4)),
    (Request, "end_id", -1, -1),
    (Request, "bad_words", [[1, 2], "no"], ((1, 2), "no")),
    (Request, "stop_words", [], ()),
    (Request, "priority", 0, 0),
    (Request, "priority", 1.0, 1.0),
    (Request, "client_id", 2**64 - 1, 2**64 - 1),
    (Request, "allotted_time_ms", 0, 0.0),
    (Request, "allotted_time_ms", timedelta(seconds=1.5), 1500.0),
    (Request, "num_draft_tokens", 0, 0),
    (Request, "logits_post_processor_name", Request.BATCHED_POST_PROCESSOR_NAME, "batched"),
    (Request, "type", RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION, RequestType(0)),
    (TokenRangeRetentionConfig, "duration_ms", timedelta(minutes=1), 60_000.0),
    (TokenRangeRetentionConfig, "priority", 100, 100),
    (KvCacheRetentionConfig, "decode_retention_priority", 0, 0),
    (OutputConfig, "additional_model_outputs", None, ()),
    (ExecutorConfig, "request_stats_max_iterations", 0, 0),
    (ExecutorConfig, "gpu_weights_percent", 1, 1),
    (ExecutorConfig, "overlap", False, False),
    (ExecutorConfig, "graphs", "split", "split"),
    (ExecutorConfig, "additional_model_outputs", [AdditionalModelOutput("a")], (AdditionalModelOutput("a"),)),
]

REFUSED: list[tuple[type, dict[str, Any], str]] = [
    # class, what is given, what the error says
    (SamplingConfig, {"beam_width": 0}, "beam_width is 0; it must be at least 1"),
    (SamplingConfig, {"beam_width": None}, "a whole number"),
    (SamplingConfig, {"beam_width": True}, "a whole number"),
    (SamplingConfig, {"top_k": -1}, "top_k is -1"),
    (SamplingConfig, {"top_k": 1.5}, "a whole number"),
    (SamplingConfig, {"top_p": -0.1}, "top_p is -0.1"),
    (SamplingConfig, {"top_p": 1.1}, "top_p is 1.1"),
    (SamplingConfig, {"temperature": -1.0}, "temperature is -1.0"),
    (SamplingConfig, {"temperature": math.nan}, "temperature is nan"),
    (SamplingConfig, {"min_tokens": -1}, "min_tokens is -1"),
    (SamplingConfig, {"min_p": 1.5}, "min_p is 1.5"),
    (SamplingConfig, {"repetition_penalty": 0}, "repetition_penalty is 0"),
    (SamplingConfig, {"beam_search_diversity_rate": -1}, "beam_search_diversity_rate is -1"),
    (SamplingConfig, {"length_penalty": -0.5}, "length_penalty is -0.5"),
    (SamplingConfig, {"early_stopping": -1}, "early_stopping is -1"),
    (SamplingConfig, {"num_return_sequences": 0}, "num_return_sequences is 0"),
    (SamplingConfig, {"beam_width": 2, "num_return_sequences": 3}, "beams of width 2 give 1 to 2 sequences"),
    (OutputConfig, {"return_log_probs": 1}, "it must be True or False"),
    (OutputConfig, {"top_log_probs": 2}, "return_log_probs=True"),
    (OutputConfig, {"top_log_probs": 21, "return_log_probs": True}, "0 to 20"),
    (OutputConfig, {"additional_model_outputs": ["a"]}, "a list of AdditionalModelOutput"),
    (OutputConfig, {"additional_model_outputs": [AdditionalModelOutput("a")] * 2}, "names one twice: a, a"),
    (AdditionalModelOutput, {"name": ""}, "a text that is not empty"),
    (ExternalDraftTokensConfig, {"tokens": []}, "tokens is empty"),
    (SpeculativeConfig, {"speculation": "ngram"}, "it must be a Speculation, as in SpeculativeConfig"),
    (Request, {"input_token_ids": []}, "input_token_ids is empty"),
    (Request, {"input_token_ids": "hello"}, "it must be a list"),
    (Request, {"input_token_ids": [1, -2]}, "token ids are at least 0"),
    (Request, {"input_token_ids": [1, 2.0]}, "a whole number"),
    (Request, {"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
    (Request, {"max_tokens": None}, "a whole number"),
    (Request, {"streaming": "yes"}, "it must be True or False"),
    (Request, {"sampling_config": None}, "it must be a SamplingConfig"),
    (Request, {"sampling_config": SamplingParams()}, "it must be a SamplingConfig"),
    (Request, {"sampling_config": SamplingConfig(min_tokens=4)}, "0 to max_tokens, 3"),
    (Request, {"end_id": -2}, "end_id is -2"),
    (Request, {"bad_words": "no"}, r"give a list: \['no'\]"),
    (Request, {"bad_words": [[]]}, "bad_words holds an empty word"),
    (Request, {"stop_words": [""]}, "an empty word"),
    (Request, {"stop_words": [[-1]]}, "token ids are at least 0"),
    (Request, {"embedding_bias": [0.0, 1.0]}, r"\[vocab_size\]"),
    (Request, {"embedding_bias": torch.zeros(2, 2)}, r"\[vocab_size\]"),
    (Request, {"embedding_bias": torch.zeros(2, dtype=torch.int64)}, "floating-point"),
    (Request, {"embedding_bias": torch.tensor([math.nan])}, "numbers outside"),
    (Request, {"embedding_bias": torch.tensor([math.inf])}, "numbers outside"),
    (Request, {"priority": -0.1}, "priority is -0.1; it must be 0 to 1"),
    (Request, {"priority": 1.5}, "priority is 1.5; it must be 0 to 1"),
    (Request, {"client_id": -1}, "client_id is -1"),
    (Request, {"allotted_time_ms": -1}, "allotted_time_ms is -1"),
    (Request, {"allotted_time_ms": timedelta(seconds=-1)}, "allotted_time_ms is -1000"),
    (Request, {"allotted_time_ms": math.inf}, "allotted_time_ms is inf"),
    (Request, {"guided_decoding_params": Guide.json()}, "it must be a GuidedDecodingParams"),
    (Request, {"logits_post_processor": 1}, "it must be a function"),
    (Request, {"logits_post_processor": double, "logits_post_processor_name": "a"}, "not both"),
    (Request, {"num_draft_tokens": 9}, r"0 \(none\) to 8"),
    (Request, {"num_draft_tokens": 2, "sampling_config": BEAMS}, "beams are not drafted"),
    (
        Request,
        {"num_draft_tokens": 0, "external_draft_tokens_config": ExternalDraftTokensConfig([1])},
        "num_draft_tokens is 0",
    ),
    (
        Request,
        {"sampling_config": BEAMS, "external_draft_tokens_config": ExternalDraftTokensConfig([1])},
        "beams are not drafted",
    ),
    (GuidedDecodingParams, {"guide": "{}"}, "use GuideType.JSON_SCHEMA"),
    (GuidedDecodingParams, {"guide_type": GuideType.JSON_SCHEMA}, "JSON_SCHEMA needs a text"),
    (GuidedDecodingParams, {"guide_type": GuideType.REGEX, "guide": ""}, "REGEX needs a text"),
    (GuidedDecodingParams, {"guide_type": GuideType.HANDLE}, "HANDLE needs a text"),
    (GuidedDecodingParams, {"guide_type": GuideType.EBNF_GRAMMAR, "guide": 5}, "EBNF_GRAMMAR needs a text"),
    (GuidedDecodingParams, {"guide_type": "regex", "guide": "a"}, "one of GuideType: JSON, JSON_SCHEMA"),
    (
        GuidedDecodingConfig,
        {"backend": "llguidance"},
        "one of GuidedDecodingBackend: XGRAMMAR, LLGUIDANCE, AUTO",
    ),
    (TokenRangeRetentionConfig, {"priority": 101}, "priority is 101; it must be 0 to 100"),
    (TokenRangeRetentionConfig, {"token_start": -1}, "token_start is -1"),
    (TokenRangeRetentionConfig, {"token_start": 4, "token_end": 4}, "above token_start, 4"),
    (KvCacheRetentionConfig, {"decode_retention_priority": -1}, "decode_retention_priority is -1"),
    (KvCacheRetentionConfig, {"token_range_retention_configs": [(0, 5)]}, "a list of TokenRange"),
    (KvCacheConfig, {"max_tokens": 0}, "max_tokens is 0"),
    (SchedulerConfig, {"capacity_scheduler_policy": 1}, "MAX_UTILIZATION, GUARANTEED_NO_EVICT, STATIC_BATCH"),
    (LogitsPostProcessorConfig, {"processor_map": [double]}, "it must map names to functions"),
    (LogitsPostProcessorConfig, {"processor_map": {"a": 1}}, "it must map names to functions"),
    (LogitsPostProcessorConfig, {"processor_map": {"batched": double}}, '"batched" is processor_batched'),
    (LogitsPostProcessorConfig, {"processor_map": {"dynamic_a": double}}, 'begin with "dynamic"'),
    (FlightRecorderConfig, {"iterations": 0}, "iterations is 0"),
    (ExecutorConfig, {"max_beam_width": 0}, "max_beam_width is 0"),
    (ExecutorConfig, {"max_batch_size": 0}, "max_batch_size is 0"),
    (ExecutorConfig, {"max_num_tokens": -5}, "max_num_tokens is -5"),
    (ExecutorConfig, {"max_queue_size": 0}, "max_queue_size is 0"),
    (ExecutorConfig, {"iter_stats_max_iterations": -1}, "iter_stats_max_iterations is -1"),
    (ExecutorConfig, {"max_seq_idle_microseconds": 0}, "max_seq_idle_microseconds is 0"),
    (ExecutorConfig, {"max_seq_len": 1}, "max_seq_len is 1"),
    (ExecutorConfig, {"overlap": "on"}, "one of 'auto', True, False"),
    (ExecutorConfig, {"overlap": 1}, "one of 'auto', True, False"),
    (ExecutorConfig, {"graphs": "two"}, "one of 'one', 'split', 'none'"),
    (ExecutorConfig, {"spec_dec_config": Speculation.ngram()}, "it must be a SpeculativeConfig"),
    (
        ExecutorConfig,
        {"max_beam_width": 2, "spec_dec_config": SpeculativeConfig(Speculation.ngram())},
        "beams are not drafted",
    ),
    (
        ExecutorConfig,
        {
            "batching_type": BatchingType.STATIC,
            "scheduler_config": SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION),
        },
        "MAX_UTILIZATION needs INFLIGHT",
    ),
]

UNSUPPORTED = [
    (cls, field) for cls in CHECKED for field in dataclasses.fields(cls) if "refused" in field.metadata
]


@pytest.mark.parametrize(("cls", "name", "given", "held"), ACCEPTED)
def test_what_is_right_is_taken(cls: type, name: str, given: Any, held: Any) -> None:
    value = getattr(make(cls, **{name: given}), name)
    assert value == held
    assert type(value) is type(held)


@pytest.mark.parametrize(("cls", "given", "message"), REFUSED)
def test_what_is_wrong_is_refused(cls: type, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make(cls, **given)


@pytest.mark.parametrize(("cls", "field"), UNSUPPORTED, ids=lambda one: getattr(one, "name", "of"))
def test_what_is_not_supported_is_refused_with_a_reason(cls: type, field: dataclasses.Field[Any]) -> None:
    default = field.default
    assert getattr(make(cls, **{field.name: default}), field.name) is default
    other = (
        not default if isinstance(default, bool) else default + 1 if isinstance(default, int | float) else [1]
    )
    with pytest.raises(
        InputError, match=re.escape(f"{cls.__name__}.{field.name} is not supported: ")
    ) as caught:
        make(cls, **{field.name: other})
    assert str(caught.value).endswith(field.metadata["refused"])


def test_there_is_something_to_refuse() -> None:
    assert {(cls.__name__, field.name) for cls, field in UNSUPPORTED} >= {
        ("Request", "lora_config"),
        ("Request", "type"),
        ("SamplingConfig", "top_p_decay"),
        ("KvCacheConfig", "host_cache_size"),
        ("ExecutorConfig", "gpu_weights_percent"),
        ("ExternalDraftTokensConfig", "logits"),
    }


def test_a_request_keeps_its_own_tokens() -> None:
    given, bias = [1, 2, 3], torch.zeros(4)
    request = Request(given, 5, bad_words=[given], embedding_bias=bias)
    given.append(4)
    bias[0] = 7.0
    assert request.input_token_ids == (1, 2, 3)
    assert request.bad_words == ((1, 2, 3),)
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
        assert KvCacheRetentionConfig(configs).token_range_retention_configs == tuple(configs)
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
    ({"temperature": 0.7}, False),
    ({"top_k": 5}, False),
    ({"min_p": 0.5}, False),
    ({"top_p": 1.0}, False),
]


@pytest.mark.parametrize(("given", "is_greedy"), GREEDY)
def test_which_sampling_is_greedy(given: dict[str, Any], is_greedy: bool) -> None:
    sampling = SamplingConfig(**given, seed=3, presence_penalty=1.0)
    assert sampling.is_greedy is is_greedy
    params = SamplingParams(**sampling.parameters())
    assert (params.temperature == 0) is is_greedy
    assert (params.seed, params.presence_penalty, params.min_tokens) == (3, 1.0, 0)
    if not is_greedy:
        assert params.temperature == given.get("temperature", 1.0)
        assert (params.top_k, params.top_p) == (given.get("top_k", 0), given.get("top_p", 1.0))
        assert params.min_p == given.get("min_p", 0.0)


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
    assert [reason.name for reason in FinishReason] == [
        "NOT_FINISHED",
        "END_ID",
        "STOP_WORDS",
        "LENGTH",
        "TIMED_OUT",
        "CANCELLED",
    ]
    assert [int(reason) for reason in FinishReason] == [0, 1, 2, 3, 4, 5]
    assert [GuideType(number).name for number in range(5)] == [
        "JSON",
        "JSON_SCHEMA",
        "REGEX",
        "EBNF_GRAMMAR",
        "STRUCTURAL_TAG",
    ]
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
        with pytest.raises(InputError, match="either a result or an error message"):
            Response(1, **given)  # type: ignore[arg-type]
    for response in (good, bad):
        response.clear_context_logits()
        response.clear_generation_logits()
    assert (result.context_logits, result.generation_logits) == (None, None)


def test_time_to_the_first_token_begins_at_the_arrival() -> None:
    times = TimingMetrics(arrival_time=10.0, guide_ready_time=12.0, first_token_time=12.5)
    assert (times.guide_compile_s, times.time_to_first_token_s) == (2.0, 2.5)
    unguided = TimingMetrics(arrival_time=10.0, first_token_time=12.5)
    assert (unguided.guide_compile_s, unguided.time_to_first_token_s) == (0.0, 2.5)
    assert TimingMetrics(arrival_time=10.0).time_to_first_token_s is None


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
    kv_cache_config=KvCacheConfig(max_tokens=4096, enable_partial_reuse=False, tokens_per_block=32),
    enable_chunked_context=False,
    max_batch_size=16,
    max_num_tokens=512,
    max_queue_size=100,
    spec_dec_config=SpeculativeConfig(Speculation.eagle3("head", num_draft_tokens={1: 5, 8: 2})),
    guided_decoding_config=GuidedDecodingConfig(),
    additional_model_outputs=[AdditionalModelOutput("TopKLogits")],
    gather_generation_logits=True,
    overlap=False,
    graphs="split",
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
    request_perf_metrics=PerfMetrics(TimingMetrics(1.0, None, 2.0, 3.0, 4.0), first_iter=3),
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


def form(sent: Any) -> str:
    """Everything that an object holds, as text that tells types apart; tensors with their kind and numbers."""
    if isinstance(sent, Response):
        held = sent.error_msg if sent.has_error() else form(sent.result)
        return f"{sent.request_id} {sent.client_id} {held}"
    return repr({field.name: getattr(sent, field.name) for field in dataclasses.fields(sent)})


@pytest.mark.parametrize("sent", SENT, ids=lambda one: type(one).__name__)
def test_pickle(sent: Any) -> None:
    arrived = pickle.loads(pickle.dumps(sent))
    assert type(arrived) is type(sent)
    assert form(arrived) == form(sent)
    assert arrived.to_dict() == sent.to_dict()


def test_results_show_the_shape_of_tensors() -> None:
    text = repr(FULL_RESULT)
    assert "output_token_ids=[[1, 2], [3]]" in text
    assert "generation_logits=<float32 [2, 2, 3]>" in text
    assert "AdditionalOutput('a', <bfloat16 [2, 2]>)" in text
    assert "tensor(" not in repr(Response(3, FULL_RESULT)) and "Response(3, Result(" in repr(
        Response(3, FULL_RESULT)
    )


@pytest.mark.parametrize("sent", SENT, ids=lambda one: type(one).__name__)
def test_json(sent: Any) -> None:
    arrived = type(sent).from_json(sent.to_json())
    assert form(arrived) == form(sent)
    assert arrived.to_dict() == sent.to_dict()


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
    (
        Request,
        {"input_token_ids": [1], "max_tokens": 3, "lora_config": {}},
        "Request.lora_config is not supported",
    ),
    (GuidedDecodingParams, {"guide_type": "XML"}, "'XML' is no GuideType; it has JSON"),
    (KvCacheRetentionConfig, {"token_range_retention_configs": [{"token_end": 3}]}, "token_start"),
    (Response, {"request_id": 3}, "either a result or an error message"),
    (Response, {"request_id": 3, "error": "a"}, "can't be made of"),
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
    assert set(stats) == {field.name for field in dataclasses.fields(IterationStats)}
    assert stats["kv_cache_stats"]["cache_hit_rate"] == 0.5
    assert stats["cross_kv_cache_stats"] is None
    assert json.loads(RequestStats(1).to_json())["stage"] == "QUEUED"


def documented() -> dict[str, dict[str, str]]:
    """Class -> field -> what docs/executor.md says of it."""
    tables: dict[str, dict[str, str]] = {}
    name = ""
    for line in DOCS.read_text().splitlines():
        if line.startswith("### "):
            name = line.removeprefix("### ")
            tables[name] = {}
        elif row := re.fullmatch(r"\| `(\w+)` \| (.*?) \| (.+) \|", line):
            tables[name][row[1]] = row[3]
    return tables


@pytest.mark.parametrize("name", sorted({cls.__name__ for cls in CHECKED} | {"Result", "IterationStats"}))
def test_every_field_is_documented(name: str) -> None:
    fields = {field.name: field for field in dataclasses.fields(getattr(types, name)) if field.init}
    table = documented()[name]
    assert list(table) == list(fields)
    for key, field in fields.items():
        if "refused" in field.metadata:
            assert table[key] == f"refused: {field.metadata['refused']}"
        else:
            assert not table[key].startswith("refused")
