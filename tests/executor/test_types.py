"""The classes of the Executor API: what their fields take and refuse, when they are made and when they are assigned."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from enum import Enum
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch

from weft import Guide, SamplingParams, Speculation
from weft.core import ValueKind
from weft.errors import InputError
from weft.executor.types import (
    AdditionalModelOutput,
    CacheTransceiverConfig,
    CapacitySchedulerPolicy,
    ContextPhaseParams,
    DebugConfig,
    DecodingConfig,
    DynamicBatchConfig,
    EagleConfig,
    ExecutorConfig,
    ExtendedRuntimePerfKnobConfig,
    ExternalDraftTokensConfig,
    FlightRecorderConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    GuideType,
    KvCacheConfig,
    KvCacheRetentionConfig,
    LogitsPostProcessorConfig,
    LookaheadDecodingConfig,
    LoraConfig,
    MropeConfig,
    MultimodalInput,
    OrchestratorConfig,
    OutputConfig,
    ParallelConfig,
    PeftCacheConfig,
    PromptTuningConfig,
    Request,
    RequestType,
    RuntimeDefaults,
    SamplingConfig,
    SchedulerConfig,
    SpeculativeDecodingConfig,
    SpeculativeDecodingFastLogitsInfo,
    TokenRangeRetentionConfig,
)
from weft.executor.types.fields import Text, Within
from weft.executor.types.settings import Settings

BEAMS = SamplingConfig(4, num_return_sequences=2, length_penalty=0.5, early_stopping=1)
DRAFTS = ExternalDraftTokensConfig([1])
NGRAMS = Speculation.ngram()
UTILIZATION = SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION)


MINIMAL: dict[type, dict[str, Any]] = {
    Request: {"input_token_ids": [1, 2], "max_tokens": 3},
    AdditionalModelOutput: {"name": "hidden_states.0"},
    ExternalDraftTokensConfig: {"tokens": [1]},
    LoraConfig: {"task_id": 1},
    PromptTuningConfig: {"embedding_table": torch.ones(2, 3)},
    MultimodalInput: {"multimodal_hashes": [[1]], "multimodal_positions": [0], "multimodal_lengths": [1]},
    MropeConfig: {"mrope_rotary_cos_sin": torch.ones(1, 4), "mrope_position_deltas": 2},
    ContextPhaseParams: {"first_gen_tokens": [5], "req_id": 7},
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
    CacheTransceiverConfig,
    DebugConfig,
    DecodingConfig,
    DynamicBatchConfig,
    EagleConfig,
    ExtendedRuntimePerfKnobConfig,
    LookaheadDecodingConfig,
    OrchestratorConfig,
    ParallelConfig,
    PeftCacheConfig,
    RuntimeDefaults,
    SpeculativeDecodingConfig,
    SpeculativeDecodingFastLogitsInfo,
    *MINIMAL,
]


def make(cls: type, **given: Any) -> Any:
    return cls(**{**MINIMAL.get(cls, {}), **given})


def form(sent: Any) -> str:
    """Everything that settings hold, as text that tells types apart; tensors with their kind and numbers."""
    return repr({field.name: getattr(sent, field.name) for field in fields(sent)})


def refuses(cls: type, given: dict[str, Any], message: str) -> None:
    """The constructor refuses it, and so do assignments, which change nothing."""
    with pytest.raises(InputError, match=message):
        make(cls, **given)
    made, refused = make(cls), ""
    for name, value in given.items():
        was = form(made)
        try:
            setattr(made, name, value)
        except InputError as error:
            refused = str(error)
            assert form(made) == was
            break
    assert re.search(message, refused)


ACCEPTED: list[tuple[type, str, Any, Any]] = [
    # class, field, what is given, what it then holds
    (SamplingConfig, "top_p", 0, 0),
    (SamplingConfig, "top_p", 1.0, 1.0),
    (SamplingConfig, "temperature", 0, 0),
    (Request, "max_tokens", torch.tensor(7), 7),
    (Request, "input_token_ids", torch.tensor([3, 4]), [3, 4]),
    (Request, "input_token_ids", np.array([3, 4], dtype=np.int32), [3, 4]),
    (Request, "bad_words", [[1, 2], "no"], [[1, 2], "no"]),
    (Request, "stop_words", [], []),
    (Request, "allotted_time_ms", 0, timedelta(0)),
    (Request, "allotted_time_ms", timedelta(seconds=1.5), timedelta(seconds=1.5)),
    (Request, "logits_post_processor_name", Request.BATCHED_POST_PROCESSOR_NAME, "batched"),
    (Request, "type", RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION, RequestType(0)),
    (TokenRangeRetentionConfig, "duration_ms", 60_000, timedelta(minutes=1)),
    (OutputConfig, "additional_model_outputs", None, None),
    (ExecutorConfig, "gpu_weights_percent", 0.5, 0.5),
    (ExecutorConfig, "graphs", "split", "split"),
    (ExecutorConfig, "additional_model_outputs", [AdditionalModelOutput("a")], [AdditionalModelOutput("a")]),
]

REFUSED: list[tuple[type, dict[str, Any], str]] = [
    # class, what is given, what the error says
    (SamplingConfig, {"top_p": -0.1}, "top_p is -0.1"),
    (SamplingConfig, {"top_p": 1.1}, "top_p is 1.1"),
    (SamplingConfig, {"beam_width": 2, "num_return_sequences": 3}, "beams of width 2 give 1 to 2 sequences"),
    (OutputConfig, {"top_log_probs": 2}, "return_log_probs=True"),
    (OutputConfig, {"additional_model_outputs": ["a"]}, "outputs.0. is 'a'; it must be a AdditionalModelOut"),
    (OutputConfig, {"additional_model_outputs": "a"}, "it must be a list, not a text"),
    (OutputConfig, {"additional_model_outputs": [AdditionalModelOutput("a")] * 2}, "names one twice: a, a"),
    (ExternalDraftTokensConfig, {"tokens": []}, "tokens is empty"),
    (ExecutorConfig, {"speculation": "ngram"}, "it must be a weft.Speculation, such as"),
    (Request, {"input_token_ids": []}, "input_token_ids is empty"),
    (Request, {"input_token_ids": "hello"}, "it must be a list"),
    (Request, {"input_token_ids": [1, -2]}, "token ids are at least 0"),
    (Request, {"input_token_ids": [1, 2.0]}, "a whole number"),
    (Request, {"sampling_config": SamplingParams()}, "it must be a SamplingConfig"),
    (Request, {"sampling_config": SamplingConfig(min_tokens=4)}, "0 to max_tokens, 3"),
    (Request, {"bad_words": "no"}, r"give a list: \['no'\]"),
    (Request, {"bad_words": [[]]}, "bad_words holds an empty word"),
    (Request, {"stop_words": [""]}, "an empty word"),
    (Request, {"stop_words": [[-1]]}, "token ids are at least 0"),
    (Request, {"embedding_bias": [0.0, 1.0]}, r"\[vocab_size\]"),
    (Request, {"embedding_bias": torch.zeros(2, 2)}, r"\[vocab_size\]"),
    (Request, {"embedding_bias": torch.zeros(2, dtype=torch.int64)}, "floating-point"),
    (Request, {"embedding_bias": torch.tensor([math.nan])}, "not finite"),
    (Request, {"embedding_bias": torch.tensor([math.inf])}, "not finite"),
    (Request, {"allotted_time_ms": -1}, "allotted_time_ms is -1"),
    (
        Request,
        {"allotted_time_ms": timedelta(seconds=-1)},
        "must be milliseconds, at least 0, or a timedelta",
    ),
    (Request, {"allotted_time_ms": math.inf}, "allotted_time_ms is inf"),
    (Request, {"guided_decoding_params": Guide.json()}, "it must be a GuidedDecodingParams"),
    (Request, {"logits_post_processor": 1}, "it must be a function"),
    (Request, {"logits_post_processor": print, "logits_post_processor_name": "a"}, "not both"),
    (Request, {"num_draft_tokens": 2, "sampling_config": BEAMS}, "beams are not drafted"),
    (Request, {"num_draft_tokens": 0, "external_draft_tokens_config": DRAFTS}, "num_draft_tokens is 0"),
    (Request, {"sampling_config": BEAMS, "external_draft_tokens_config": DRAFTS}, "beams are not drafted"),
    (GuidedDecodingParams, {"guide": "{}"}, "use GuideType.JSON_SCHEMA"),
    (GuidedDecodingParams, {"guide_type": GuideType.JSON_SCHEMA}, "JSON_SCHEMA needs a text"),
    (GuidedDecodingParams, {"guide_type": GuideType.REGEX, "guide": ""}, "REGEX needs a text"),
    (GuidedDecodingParams, {"guide_type": GuideType.HANDLE}, "HANDLE needs a text"),
    (GuidedDecodingParams, {"guide_type": GuideType.EBNF_GRAMMAR, "guide": 5}, "guide is .* text"),
    (TokenRangeRetentionConfig, {"token_start": 4, "token_end": 4}, "above token_start, 4"),
    (KvCacheRetentionConfig, {"token_range_retention_configs": [(0, 5)]}, "it must be a TokenRange"),
    (LogitsPostProcessorConfig, {"processor_map": [print]}, "a mapping of names to functions"),
    (LogitsPostProcessorConfig, {"processor_map": {"a": 1}}, "a mapping of names to functions"),
    (LogitsPostProcessorConfig, {"processor_map": {"batched": print}}, '"batched" is processor_batched'),
    (LogitsPostProcessorConfig, {"processor_map": {"dynamic_a": print}}, 'begin with "dynamic"'),
    (ExecutorConfig, {"overlap": "on"}, "it must be 'auto', True or False"),
    (ExecutorConfig, {"overlap": 1}, "it must be 'auto', True or False"),
    (
        ExecutorConfig,
        {"activation_dtype": "fp8"},
        "it must be 'auto', 'float32', 'bfloat16x2', 'bfloat16' or",
    ),
    (ExecutorConfig, {"graphs": "two"}, "it must be 'one', 'split' or 'none'"),
    (ExecutorConfig, {"spec_dec_config": Speculation.ngram()}, "it must be a SpeculativeDecodingConfig"),
    (ExecutorConfig, {"max_beam_width": 2, "speculation": NGRAMS}, "beams are not drafted"),
]

NEEDS: dict[tuple[type, str], dict[str, Any]] = {
    (OutputConfig, "top_log_probs"): {"return_log_probs": True},
    (SamplingConfig, "num_return_sequences"): {"beam_width": 1},
    (TokenRangeRetentionConfig, "token_end"): {"token_start": 0},
    (LookaheadDecodingConfig, "max_ngram_size"): {"max_window_size": 1, "max_verification_set_size": 0},
}
"""What a field's bounds need beside it."""


def supported() -> Iterator[tuple[type, str, list[Any]]]:
    """Each field that is not refused, and the arms of its annotation."""
    for cls in CHECKED:
        for name, hint in get_type_hints(cls, include_extras=True).items():
            if name in {one.name for one in fields(cls)}:
                yield cls, name, [hint] if get_origin(hint) is Annotated else [hint, *get_args(hint)]


BOUNDED = [
    (cls, name, bounds)
    for cls, name, arms in supported()
    for arm in arms
    if get_origin(arm) is Annotated
    for bounds in arm.__metadata__
    if isinstance(bounds, Within)
]


def wanted(arm: Any) -> str | None:
    """What a field of this type says that it must be."""
    if arm is bool or arm == Text:
        return "True or False" if arm is bool else "a text that is not empty"
    if isinstance(arm, type) and issubclass(arm, Enum):
        return f"one of {arm.__name__}: {', '.join(arm.__members__)}"
    return f"a {arm.__name__}" if isinstance(arm, type) and issubclass(arm, Settings) else None


WRONG = [(cls, name, words) for cls, name, arms in supported() for arm in arms if (words := wanted(arm))]


@pytest.mark.parametrize(("cls", "name", "bounds"), BOUNDED)
def test_numbers_are_taken_within_their_bounds(cls: type, name: str, bounds: Within) -> None:
    lowest, highest = (
        int(b) if bounds.kind is ValueKind.INTEGER else b for b in (bounds.lowest, bounds.highest)
    )
    beside = NEEDS.get((cls, name), {"max_tokens": 2**31 - 1} if cls is Request else {})
    for given in (max(lowest, 1) if name == "token_end" else lowest, highest):
        made = make(cls, **{**beside, name: given})
        assert getattr(made, name) == given and type(getattr(made, name)) is type(given)
    outside = (
        (lowest - 1, highest + 1)
        if bounds.kind is ValueKind.INTEGER
        else (lowest - 0.5, highest * 1.5, math.nan)
    )
    for given in outside:
        refuses(cls, {name: given}, re.escape(f"{name} is {given}; it must be {bounds.valid}"))
    for given in (True, "1", [], *([1.5] if bounds.kind is ValueKind.INTEGER else [])):
        words = f"{name} is {given!r}; it must be {bounds.kind.value}: {bounds.valid}"
        refuses(cls, {name: given}, re.escape(words))
    if next(one for one in fields(cls) if one.name == name).default is not None:
        refuses(cls, {name: None}, f"{name} is None; it must be {bounds.kind.value}")


@pytest.mark.parametrize(("cls", "name", "words"), WRONG)
def test_fields_take_their_own_kind(cls: type, name: str, words: str) -> None:
    for given in ("" if "text" in words else "yes", 1, {}, object()):
        refuses(cls, {name: given}, f"{name} is {re.escape(repr(given))}; it must be .*{words}")


def test_there_is_something_that_fields_say() -> None:
    assert len(BOUNDED) >= 35 and len(WRONG) >= 30


@pytest.mark.parametrize(("cls", "name", "given", "held"), ACCEPTED)
def test_what_is_right_is_taken(cls: type, name: str, given: Any, held: Any) -> None:
    value = getattr(make(cls, **{name: given}), name)
    assert value == held
    assert type(value) is type(held)
    made = make(cls)
    setattr(made, name, given)
    assert getattr(made, name) == held
    assert made == make(cls, **{name: given})


@pytest.mark.parametrize(("cls", "given", "message"), REFUSED)
def test_what_is_wrong_is_refused(cls: type, given: dict[str, Any], message: str) -> None:
    refuses(cls, given, message)
