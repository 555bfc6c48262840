"""Settings may be assigned after they are made: with the constructor's checks, and without a trace of what fails."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from executor.test_types import CHECKED, make
from weft.errors import InputError
from weft.executor import (
    Executor,
    ExecutorConfig,
    KvCacheRetentionConfig,
    LogitsPostProcessorConfig,
    OutputConfig,
    Request,
    SamplingConfig,
    TokenRangeRetentionConfig,
)


@pytest.mark.parametrize("cls", CHECKED)
def test_there_are_no_other_fields(cls: type) -> None:
    made = make(cls)
    with pytest.raises(InputError, match=f"{cls.__name__} has no field 'colour'; it has "):
        made.colour = "red"
    with pytest.raises(InputError, match=f"{cls.__name__} has no field 'colour'; it has "):
        make(cls, colour="red")
    with pytest.raises(InputError, match="can't be deleted"):
        del made.colour
    with pytest.raises(TypeError, match="unhashable"):
        hash(made)


def test_arguments_that_are_missing_or_too_many() -> None:
    with pytest.raises(InputError, match="Request needs input_token_ids; give it"):
        Request(max_tokens=3)  # type: ignore[call-arg]
    with pytest.raises(InputError, match="Request takes 2 values by position"):
        Request([1], 3, True)  # type: ignore[call-arg, misc]
    with pytest.raises(InputError, match="max_tokens is 'x'; it must be a whole number"):
        Request([1], "x")  # type: ignore[arg-type]


def test_what_follows_from_the_fields_is_not_assigned() -> None:
    with pytest.raises(InputError, match=r"SamplingConfig\.is_greedy follows from the fields"):
        SamplingConfig().is_greedy = False  # type: ignore[misc]


def test_defaults_are_each_owners_own() -> None:
    first, second = Request([1], 5), Request([1], 5)
    first.sampling_config.top_k = 3
    first.output_config.return_log_probs = True
    assert second.sampling_config == SamplingConfig()
    assert second.output_config == OutputConfig()
    config = ExecutorConfig()
    config.kv_cache_config.max_tokens = 64
    assert ExecutorConfig().kv_cache_config.max_tokens is None


def test_requests_are_equal_by_what_they_hold() -> None:
    def biased(value: float) -> Request:
        return Request([1, 2], 3, embedding_bias=torch.tensor([value, 0.0]))

    assert biased(1.0) == biased(1.0)
    assert biased(1.0) != biased(2.0)
    assert biased(1.0) != Request([1, 2], 3)
    assert Request([1, 2], 3) != Request([1, 2], 4)
    assert Request([1, 2], 3) != SamplingConfig()


def test_parts_that_no_longer_go_together_are_found_where_they_are_used() -> None:
    request = Request([1], 5)
    request.sampling_config.min_tokens = 9
    with pytest.raises(InputError, match="0 to max_tokens, 5"):
        request.snapshot()
    ranges = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 4), TokenRangeRetentionConfig(4)])
    kept = Request([1], 5, kv_cache_retention_config=ranges)
    ranges.token_range_retention_configs[0].token_end = 5
    with pytest.raises(InputError, match="overlap"):
        kept.snapshot()
    processors = LogitsPostProcessorConfig({"mine": print})
    assert isinstance(processors.processor_map, dict)
    processors.processor_map["dynamic"] = print
    with pytest.raises(InputError, match='begin with "dynamic"'):
        ExecutorConfig(logits_post_processor_config=processors).snapshot()


def test_a_snapshot_is_not_reached_by_assignments() -> None:
    ranges = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 4)])
    request = Request([1], 5, kv_cache_retention_config=ranges)
    kept = request.snapshot()
    request.streaming = True
    request.output_config.exclude_input_from_output = True
    ranges.token_range_retention_configs[0].token_end = 3
    assert kept == Request(
        [1], 5, kv_cache_retention_config=KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 4)])
    )


def forbid_all_but_42(request_id: int, logits: torch.Tensor, *_: Any) -> None:
    logits[:] = float("-inf")
    logits[..., 42] = 0


def test_a_program_that_assigns() -> None:
    """As programs for TensorRT-LLM are written; what is assigned after it was handed over has no effect."""
    output = OutputConfig()
    output.exclude_input_from_output = True
    processors = LogitsPostProcessorConfig()
    processors.processor_map = {"mine": forbid_all_but_42}
    config = ExecutorConfig(1)
    config.logits_post_processor_config = processors
    with Executor(None, config) as executor:
        config.logits_post_processor_config = None
        request = Request(input_token_ids=[0, 292], max_tokens=5)
        request.output_config = output
        request.logits_post_processor_name = "mine"
        first = executor.enqueue_request(request)
        output.exclude_input_from_output = False
        request.logits_post_processor_name = None
        request.max_tokens = 1
        second = executor.enqueue_request(request)
        assert executor.await_responses(first)[0].result.output_token_ids == [[42] * 5]
        (tokens,) = executor.await_responses(second)[0].result.output_token_ids
        assert tokens[:2] == [0, 292] and len(tokens) == 3
