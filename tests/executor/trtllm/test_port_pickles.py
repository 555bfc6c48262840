"""Ported: what is pickled comes back the same."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import weft.executor as trtllm
from support.trtllm import (
    CACHE_ASSIGNED,
    SCHEMA,
    copied,
    full_executor_config,
    full_result,
    reads,
    xgrammar_config,
)


def survives(thing: Any, *names: str) -> Any:
    """A pickled copy, of which these attributes are the same."""
    copy = copied(thing)
    assert type(copy) is type(thing)
    reads(copy, **{name: getattr(thing, name) for name in names})
    return copy


def test_output_config_pickle() -> None:
    outputs = [trtllm.AdditionalModelOutput("topKLogits", True)]
    copy = copied(trtllm.OutputConfig(True, False, True, False, True, False, outputs))
    reads(
        copy,
        return_log_probs=True,
        return_context_logits=False,
        return_generation_logits=True,
        exclude_input_from_output=False,
        return_encoder_output=True,
        return_perf_metrics=False,
    )
    (output,) = copy.additional_model_outputs
    reads(output, name="topKLogits", gather_context=True)


def test_result_pickle() -> None:
    copy = survives(
        full_result(),
        "is_final",
        "output_token_ids",
        "cum_log_probs",
        "log_probs",
        "context_logits",
        "generation_logits",
        "encoder_output",
        "finish_reasons",
        "sequence_index",
        "is_sequence_final",
        "decoding_iter",
    )
    assert copy.request_perf_metrics.last_iter == 33


def test_dynamic_batch_config_pickle() -> None:
    given = {
        "enable_batch_size_tuning": True,
        "enable_max_num_tokens_tuning": True,
        "dynamic_batch_moving_average_window": 128,
    }
    reads(copied(trtllm.DynamicBatchConfig(**given)), **given)


def test_speculative_decoding_config_pickle() -> None:
    reads(copied(trtllm.SpeculativeDecodingConfig(True)), fast_logits=True)


def test_lookahead_decoding_config_pickle() -> None:
    copy = copied(trtllm.LookaheadDecodingConfig(3, 5, 7))
    reads(copy, max_window_size=3, max_ngram_size=5, max_verification_set_size=7)


def test_eagle_config_pickle() -> None:
    names = (
        "eagle_choices",
        "greedy_sampling",
        "posterior_threshold",
        "use_dynamic_tree",
        "dynamic_tree_max_topK",
    )
    for given in (([[0, 0], [0, 1]], False, 0.5), (None, False, 0.5, True, 3)):
        copy = survives(trtllm.EagleConfig(*given), *names)
        reads(copy, **dict(zip(names, given, strict=False)))


def test_parallel_config_pickle() -> None:
    given: dict[str, Any] = {
        "communication_type": trtllm.CommunicationType.MPI,
        "communication_mode": trtllm.CommunicationMode.LEADER,
        "device_ids": [0, 1, 2, 3],
        "participant_ids": [4, 5, 6, 7],
    }
    config = trtllm.ParallelConfig(*given.values(), num_nodes=2)
    reads(copied(config), **given, num_nodes=2)


def test_request_perf_metrics_pickle() -> None:
    step = timedelta(seconds=42, milliseconds=123)
    moments = (
        "arrival_time",
        "first_scheduled_time",
        "first_token_time",
        "last_token_time",
        "kv_cache_transfer_start",
        "kv_cache_transfer_end",
    )
    parts: dict[str, dict[str, Any]] = {
        "timing_metrics": {
            **{name: number * step for number, name in enumerate(moments, 1)},
            "kv_cache_size": 1024,
        },
        "kv_cache_metrics": {
            "num_total_allocated_blocks": 1,
            "num_new_allocated_blocks": 1,
            "num_reused_blocks": 0,
            "num_missed_blocks": 1,
            "kv_cache_hit_rate": 0,
        },
        "speculative_decoding": {
            "acceptance_rate": 0.5,
            "total_accepted_draft_tokens": 2,
            "total_draft_tokens": 4,
        },
    }
    metrics = trtllm.RequestPerfMetrics()
    for part, values in parts.items():
        for name, value in values.items():
            setattr(getattr(metrics, part), name, value)
    metrics.first_iter, metrics.iter, metrics.last_iter = 0, 40, 50
    copy = copied(metrics)
    for part, values in parts.items():
        reads(getattr(copy, part), **values)
    reads(copy, first_iter=0, iter=40, last_iter=50)


def test_scheduler_config_pickle() -> None:
    policy = trtllm.CapacitySchedulerPolicy.MAX_UTILIZATION
    reads(copied(trtllm.SchedulerConfig(policy)), capacity_scheduler_policy=policy)


def test_kv_cache_config_pickle() -> None:
    config = trtllm.KvCacheConfig(free_gpu_memory_fraction=0.5)
    values = {**CACHE_ASSIGNED, "enable_block_reuse": True, "free_gpu_memory_fraction": 0.3}
    for name, value in values.items():
        setattr(config, name, value)
    reads(copied(config), **values)


def test_kv_cache_retention_config_pickle() -> None:
    ranged = trtllm.KvCacheRetentionConfig.TokenRangeRetentionConfig(0, 2, 30, timedelta(seconds=30))
    mode = trtllm.KvCacheTransferMode.GDS
    config = trtllm.KvCacheRetentionConfig([ranged], 80, None, mode, "test_dir")
    copy = copied(config)
    assert copy == config
    assert copy is not config


def test_peft_cache_config_pickle() -> None:
    survives(
        trtllm.PeftCacheConfig(1, 2, 3, 4, 5, 6, 7, 8, 9, 0.9, 1024),
        "num_host_module_layer",
        "num_device_module_layer",
        "optimal_adapter_size",
        "max_adapter_size",
        "num_put_workers",
        "num_ensure_workers",
        "num_copy_streams",
        "max_pages_per_block_host",
        "max_pages_per_block_device",
        "device_cache_percent",
        "host_cache_size",
    )


def test_decoding_config_pickle() -> None:
    config = trtllm.DecodingConfig(decoding_mode=trtllm.DecodingMode.BeamSearch())
    copy = survives(config, "lookahead_decoding_config", "medusa_choices")
    assert copy.decoding_mode.isBeamSearch()


def test_debug_config_pickle() -> None:
    given = {
        "debug_input_tensors": True,
        "debug_output_tensors": True,
        "debug_tensor_names": ["test"],
        "debug_tensors_max_iterations": 5,
    }
    reads(copied(trtllm.DebugConfig(**given)), **given)


def test_logits_post_processor_config_pickle() -> None:
    given = {"processor_map": {"test_pp": None}, "processor_batched": None, "replicate": False}
    reads(copied(trtllm.LogitsPostProcessorConfig(**given)), **given)


def test_guided_decoding_params_pickle() -> None:
    kind = trtllm.GuidedDecodingParams.GuideType.JSON_SCHEMA
    reads(copied(trtllm.GuidedDecodingParams(kind, guide=SCHEMA)), guide_type=kind, guide=SCHEMA)


def test_guided_decoding_config_pickle() -> None:
    given = xgrammar_config()
    reads(copied(trtllm.GuidedDecodingConfig(**given)), **given)


def test_cache_transceiver_config_pickle() -> None:
    survives(trtllm.CacheTransceiverConfig(max_num_tokens=1024), "max_num_tokens")


def test_executor_config_pickle() -> None:
    given = full_executor_config()
    config = trtllm.ExecutorConfig(**given)
    plain = {
        name: value
        for name, value in given.items()
        if "config" not in name and name != "additional_model_outputs"
    }
    reads(config, **plain)
    config.backend = "pytorch"
    copy = survives(config, *plain, "backend", "use_gpu_direct_storage")
    assert copy.backend == "pytorch"
    inside = {
        "scheduler_config": ("capacity_scheduler_policy",),
        "kv_cache_config": ("enable_block_reuse", "free_gpu_memory_fraction"),
        "parallel_config": ("communication_type",),
        "peft_cache_config": ("num_host_module_layer",),
        "extended_runtime_perf_knob_config": ("multi_block_mode",),
        "debug_config": ("debug_input_tensors",),
        "spec_dec_config": ("fast_logits",),
        "guided_decoding_config": ("backend", "encoded_vocab", "tokenizer_str", "stop_token_ids"),
    }
    for part, names in inside.items():
        before, after = getattr(config, part), getattr(copy, part)
        reads(after, **{name: getattr(before, name) for name in names})
    assert copy.decoding_config.decoding_mode.isTopKandTopP()
    (output,) = copy.additional_model_outputs
    reads(output, name="topKLogits", gather_context=False)


def test_request_pickle() -> None:
    sampling = trtllm.SamplingConfig(beam_width=1, top_k=10, top_p=0.1, num_return_sequences=3)
    request = trtllm.Request(
        input_token_ids=[1, 2, 3, 4],
        max_tokens=5,
        streaming=False,
        client_id=123,
        sampling_config=sampling,
    )
    copy = survives(
        request,
        "request_type",
        "input_token_ids",
        "max_tokens",
        "client_id",
        "guided_decoding_params",
        "kv_cache_retention_config",
    )
    reads(copy.sampling_config, beam_width=1, top_k=10, num_return_sequences=3)
    assert copy.output_config.return_log_probs == request.output_config.return_log_probs
