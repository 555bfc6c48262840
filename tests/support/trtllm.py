"""Helpers for the ports of TensorRT-LLM's binding tests: the three forms of waiting, checks of fields, and copies."""

from __future__ import annotations

import json
import pickle
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Literal

import torch
from pydantic import BaseModel

import weft.executor as trtllm

Form = Literal["one", "any", "several"]
"""The argument of `await_responses`: one request id, none, or a list of them."""

PROMPT = [1, 2, 3, 4]
WAIT = timedelta(milliseconds=1)
PATIENCE_S = 60.0


def half_memory(beam_width: int = 1, **fields: Any) -> Any:
    """The config with which most of those tests start."""
    cache = trtllm.KvCacheConfig(free_gpu_memory_fraction=0.5)
    return trtllm.ExecutorConfig(beam_width, kv_cache_config=cache, **fields)


def answer_length(num_prompt: int, max_tokens: int, streaming: bool, without_input: bool = False) -> int:
    """The number of tokens in all responses of a sequence together."""
    return max_tokens if streaming or without_input else num_prompt + max_tokens


# -- waiting


def take(executor: Any, ids: Sequence[int], form: Form) -> list[Any]:
    """Return the responses that `await_responses` gives within a millisecond, as a flat list."""
    if form == "any":
        return list(executor.await_responses(WAIT))
    if form == "one":
        return [response for number in ids for response in executor.await_responses(number, WAIT)]
    lists = executor.await_responses(list(ids), WAIT)
    assert len(lists) == len(ids)
    return [response for told in lists for response in told]


def drain(executor: Any, ids: Sequence[int], form: Form = "one") -> dict[int, list[Any]]:
    """Return the results of these requests up to the last of each. With a list of ids, all stay in the list to the
    end: finished requests then respond with an error that says so."""
    told: dict[int, list[Any]] = {number: [] for number in ids}
    done: set[int] = set()
    until = time.monotonic() + PATIENCE_S
    while len(done) < len(told):
        assert time.monotonic() < until, f"of {list(told)} only {sorted(done)} have ended"
        asked = ids if form == "several" else [number for number in ids if number not in done]
        for response in take(executor, asked, form):
            number = response.request_id
            if response.has_error():
                gone = f"ReqId {number} has already been processed and was terminated."
                assert number in done and response.error_msg == gone, f"{number}: {response.error_msg}"
                continue
            told[number].append(response.result)
            if response.result.is_final:
                done.add(number)
    return told


def joined(results: Iterable[Any], beam: int = 0) -> dict[int, list[int]]:
    """Concatenate the tokens of a request's results, by sequence."""
    tokens: dict[int, list[int]] = defaultdict(list)
    for result in results:
        tokens[result.sequence_index] += result.output_token_ids[beam]
    return dict(tokens)


def the_tokens(executor: Any, request: Any) -> list[int]:
    """Run a request with one sequence, and return all of its tokens."""
    number = executor.enqueue_request(request)
    (tokens,) = joined(drain(executor, [number])[number]).values()
    return tokens


# -- fields


def reads(thing: Any, **expected: Any) -> None:
    """Check that each attribute has its expected value. Booleans and None must be identical, other values equal."""
    for name, value in expected.items():
        got = getattr(thing, name)
        if isinstance(value, torch.Tensor):
            assert torch.equal(got, value), name
        elif value is None or isinstance(value, bool):
            assert got is value, f"{name} is {got!r}, not {value!r}"
        else:
            assert got == value, f"{name} is {got!r}, not {value!r}"


def copied(thing: Any) -> Any:
    """Return a copy made by pickle."""
    return pickle.loads(pickle.dumps(thing))


# -- complete objects that several tests use


CACHE_ASSIGNED: dict[str, Any] = {
    "enable_block_reuse": False,
    "max_tokens": 1,
    "max_attention_window": [2],
    "sink_token_length": 3,
    "free_gpu_memory_fraction": 0.5,
    "cross_kv_cache_fraction": 0.5,
    "host_cache_size": 4,
    "onboard_blocks": False,
    "secondary_offload_min_priority": 50,
    "event_buffer_max_size": 1024,
    "enable_partial_reuse": False,
    "copy_on_partial_reuse": False,
    "use_uvm": True,
}
"""A value other than the default for each of the older fields of `KvCacheConfig`."""


class Answer(BaseModel):
    answer: int


SCHEMA = json.dumps(Answer.model_json_schema())


def xgrammar_config() -> dict[str, Any]:
    """The arguments for a `GuidedDecodingConfig`."""
    return {
        "backend": trtllm.GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR,
        "encoded_vocab": ["eos", "a", "b", "c", "d"],
        "tokenizer_str": None,
        "stop_token_ids": [0],
    }


def full_executor_config() -> dict[str, Any]:
    """A value other than the default for nearly every field of `ExecutorConfig`."""
    xgrammar = trtllm.GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR
    return {
        "max_beam_width": 2,
        "max_batch_size": 8,
        "max_num_tokens": 128,
        "scheduler_config": trtllm.SchedulerConfig(trtllm.CapacitySchedulerPolicy.MAX_UTILIZATION),
        "kv_cache_config": trtllm.KvCacheConfig(enable_block_reuse=True, free_gpu_memory_fraction=0.5),
        "enable_chunked_context": True,
        "normalize_log_probs": False,
        "iter_stats_max_iterations": 100,
        "batching_type": trtllm.BatchingType.STATIC,
        "parallel_config": trtllm.ParallelConfig(),
        "peft_cache_config": trtllm.PeftCacheConfig(10),
        "logits_post_processor_config": trtllm.LogitsPostProcessorConfig(),
        "decoding_config": trtllm.DecodingConfig(trtllm.DecodingMode.TopKTopP()),
        "extended_runtime_perf_knob_config": trtllm.ExtendedRuntimePerfKnobConfig(multi_block_mode=True),
        "debug_config": trtllm.DebugConfig(
            debug_input_tensors=True, debug_output_tensors=True, debug_tensor_names=["test"]
        ),
        "recv_poll_period_ms": 50,
        "max_seq_idle_microseconds": 240_000_000,
        "spec_dec_config": trtllm.SpeculativeDecodingConfig(fast_logits=True),
        "guided_decoding_config": trtllm.GuidedDecodingConfig(xgrammar, encoded_vocab=["eos", *"abcd"]),
        "additional_model_outputs": [trtllm.AdditionalModelOutput("topKLogits")],
        "gather_generation_logits": True,
        "mm_embedding_offloading": True,
        "enable_trt_overlap": True,
    }


def full_result() -> Any:
    """Make a `Result`, assign every field except the additional outputs, and check that they read back."""
    result = trtllm.Result()
    values: dict[str, Any] = {
        "is_final": True,
        "output_token_ids": [[1, 2, 3]],
        "cum_log_probs": [1.0, 2.0, 3.0],
        "log_probs": [[1.0, 2.0, 3.0]],
        "context_logits": torch.ones(3, 100),
        "generation_logits": torch.ones(1, 3, 100),
        "encoder_output": torch.ones(1, 1),
        "finish_reasons": [trtllm.FinishReason.LENGTH],
        "sequence_index": 1,
        "is_sequence_final": True,
        "decoding_iter": 1,
        "request_perf_metrics": trtllm.RequestPerfMetrics(),
    }
    for name, value in values.items():
        setattr(result, name, value)
    result.request_perf_metrics.last_iter = 33
    reads(result, **values)
    return result
