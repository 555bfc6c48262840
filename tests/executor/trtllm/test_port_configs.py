"""Ported: the classes that configure an executor read back what they were given, and have those defaults."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import pytest

import weft
import weft.executor as trtllm
from support.trtllm import CACHE_ASSIGNED, full_executor_config, reads


def test_dynamic_batch_config() -> None:
    fields = {
        "enable_batch_size_tuning": True,
        "enable_max_num_tokens_tuning": True,
        "dynamic_batch_moving_average_window": 128,
    }
    reads(trtllm.DynamicBatchConfig(**fields), **fields)


def test_scheduler_config() -> None:
    policies = trtllm.CapacitySchedulerPolicy
    no_evict, static = policies.GUARANTEED_NO_EVICT, policies.STATIC_BATCH
    reads(trtllm.SchedulerConfig(), capacity_scheduler_policy=no_evict, context_chunking_policy=None)
    for policy in (policies.MAX_UTILIZATION, no_evict, static):
        reads(trtllm.SchedulerConfig(policy), capacity_scheduler_policy=policy, context_chunking_policy=None)
    chunking = trtllm.ContextChunkingPolicy.FIRST_COME_FIRST_SERVED
    config = trtllm.SchedulerConfig(static, chunking)
    reads(config, capacity_scheduler_policy=static, context_chunking_policy=chunking)
    config = trtllm.SchedulerConfig(static, chunking, trtllm.DynamicBatchConfig(True, True, 128))
    reads(config, capacity_scheduler_policy=static, context_chunking_policy=chunking)
    reads(
        config.dynamic_batch_config,
        enable_batch_size_tuning=True,
        enable_max_num_tokens_tuning=True,
        dynamic_batch_moving_average_window=128,
    )


CACHE_DEFAULTS: dict[str, Any] = {
    "enable_block_reuse": True,
    "max_tokens": None,
    "max_attention_window": None,
    "sink_token_length": None,
    "free_gpu_memory_fraction": None,
    "cross_kv_cache_fraction": None,
    "host_cache_size": None,
    "onboard_blocks": True,
    "secondary_offload_min_priority": None,
    "event_buffer_max_size": 0,
    "enable_partial_reuse": True,
    "copy_on_partial_reuse": True,
    "use_uvm": False,
}
CACHE_MADE: dict[str, Any] = {
    "enable_block_reuse": True,
    "max_tokens": 3,
    "max_attention_window": [10],
    "sink_token_length": 2,
    "free_gpu_memory_fraction": 0.5,
    "cross_kv_cache_fraction": 0.5,
    "host_cache_size": 1024,
    "onboard_blocks": False,
    "event_buffer_max_size": 2048,
    "enable_partial_reuse": True,
    "copy_on_partial_reuse": False,
    "use_uvm": True,
}


def test_kv_cache_config() -> None:
    config = trtllm.KvCacheConfig()
    reads(config, **CACHE_DEFAULTS)
    for name, value in CACHE_ASSIGNED.items():
        setattr(config, name, value)
    reads(config, **CACHE_ASSIGNED)
    reads(trtllm.KvCacheConfig(**CACHE_MADE), **CACHE_MADE)

    # What an engine says of itself fills what is empty, and only that.
    window, sinks = CACHE_MADE["max_attention_window"], CACHE_MADE["sink_token_length"]
    defaults = trtllm.RuntimeDefaults(max_attention_window=[*window, 1], sink_token_length=sinks + 1)
    filled = trtllm.KvCacheConfig(**CACHE_MADE)
    filled.fill_empty_fields_from_runtime_defaults(defaults)
    reads(filled, max_attention_window=window, sink_token_length=sinks)
    empty = trtllm.KvCacheConfig(**{**CACHE_MADE, "max_attention_window": None, "sink_token_length": None})
    empty.fill_empty_fields_from_runtime_defaults(defaults)
    reads(empty, max_attention_window=[*window, 1], sink_token_length=sinks + 1)
    made = trtllm.KvCacheConfig(**CACHE_MADE, runtime_defaults=defaults)
    reads(made, **{name: getattr(filled, name) for name in CACHE_MADE})


def test_kv_cache_retention_config() -> None:
    ranged, modes = trtllm.KvCacheRetentionConfig.TokenRangeRetentionConfig, trtllm.KvCacheTransferMode
    half_minute = timedelta(seconds=30)
    config = trtllm.KvCacheRetentionConfig([ranged(0, 2, 30, half_minute)], 80, None, modes.GDS, "test_dir")
    (only,) = config.token_range_retention_configs
    reads(only, token_start=0, token_end=2, priority=30, duration_ms=half_minute)
    reads(
        config,
        decode_retention_priority=80,
        decode_duration_ms=None,
        transfer_mode=modes.GDS,
        directory="test_dir",
    )

    config = trtllm.KvCacheRetentionConfig(
        [ranged(0, 64, 80), ranged(64, 100, 10)],
        10,
        timedelta(milliseconds=30000),
        modes.POSIX_DEBUG_FALLBACK,
        "test_dir",
    )
    first, second = config.token_range_retention_configs
    reads(first, token_start=0, token_end=64, priority=80, duration_ms=None)
    reads(second, token_start=64, token_end=100, priority=10, duration_ms=None)
    reads(
        config,
        decode_retention_priority=10,
        decode_duration_ms=half_minute,
        transfer_mode=modes.POSIX_DEBUG_FALLBACK,
        directory="test_dir",
    )

    overlapping = [ranged(0, 64, 10), ranged(32, 128, 50)]
    with pytest.raises(weft.InputError):
        trtllm.KvCacheRetentionConfig(overlapping, 50)


def test_executor_config() -> None:
    config = trtllm.ExecutorConfig()
    reads(
        config,
        max_beam_width=1,
        max_batch_size=None,
        max_num_tokens=None,
        enable_chunked_context=False,
        normalize_log_probs=True,
        iter_stats_max_iterations=1000,
        batching_type=trtllm.BatchingType.INFLIGHT,
        parallel_config=None,
        logits_post_processor_config=None,
        decoding_config=None,
        debug_config=None,
        recv_poll_period_ms=0,
        max_seq_idle_microseconds=180_000_000,
        spec_dec_config=None,
        guided_decoding_config=None,
        additional_model_outputs=None,
        gather_generation_logits=False,
        use_gpu_direct_storage=False,
        mm_embedding_offloading=False,
        enable_trt_overlap=False,
    )
    assert isinstance(config.scheduler_config, trtllm.SchedulerConfig)
    assert isinstance(config.kv_cache_config, trtllm.KvCacheConfig)
    assert isinstance(config.peft_cache_config, trtllm.PeftCacheConfig)

    given = {**full_executor_config(), "use_gpu_direct_storage": True}
    config = trtllm.ExecutorConfig(**given)
    parts = {name for name in given if "config" in name}
    reads(config, **{name: given[name] for name in given.keys() - parts - {"additional_model_outputs"}})
    for name in parts:
        assert isinstance(getattr(config, name), type(given[name])), name
    policy = trtllm.CapacitySchedulerPolicy.MAX_UTILIZATION
    reads(config.scheduler_config, capacity_scheduler_policy=policy)
    reads(config.extended_runtime_perf_knob_config, multi_block_mode=True)
    assert isinstance(config.additional_model_outputs, list)
    (output,) = config.additional_model_outputs
    reads(output, name="topKLogits", gather_context=False)


def test_parallel_config() -> None:
    kind, modes = trtllm.CommunicationType.MPI, trtllm.CommunicationMode
    devices, participants = [0, 1, 2, 3], [4, 5, 6, 7]
    config = trtllm.ParallelConfig(kind, modes.LEADER, devices, participants, num_nodes=2)
    reads(
        config,
        communication_type=kind,
        communication_mode=modes.LEADER,
        device_ids=devices,
        participant_ids=participants,
        num_nodes=2,
    )
    worker = __file__  # stands for the worker's program
    orchestrator = trtllm.OrchestratorConfig(True, worker, None, True)
    config = trtllm.ParallelConfig(kind, modes.ORCHESTRATOR, devices, participants, orchestrator)
    reads(config, communication_mode=modes.ORCHESTRATOR)
    reads(
        config.orchestrator_config,
        is_orchestrator=True,
        worker_executable_path=worker,
        spawn_processes=True,
    )


def test_peft_cache_config() -> None:
    whole: dict[str, Any] = {
        "num_host_module_layer": 1,
        "num_device_module_layer": 2,
        "optimal_adapter_size": 3,
        "max_adapter_size": 4,
        "num_put_workers": 5,
        "num_ensure_workers": 6,
        "num_copy_streams": 7,
        "max_pages_per_block_host": 8,
        "max_pages_per_block_device": 9,
        "device_cache_percent": pytest.approx(0.9),
        "host_cache_size": 1024,
        "lora_prefetch_dir": "/tmp/lora_prefetch",
    }
    config = trtllm.PeftCacheConfig(1, 2, 3, 4, 5, 6, 7, 8, 9, 0.9, 1024, "/tmp/lora_prefetch")
    reads(config, **whole)


def test_getters_return_references() -> None:
    config = trtllm.ExecutorConfig()
    config.kv_cache_config.max_tokens = 42
    assert config.kv_cache_config.max_tokens == 42


def test_executor_version() -> None:
    assert trtllm.__version__ == weft.__version__


def test_runtime_defaults() -> None:
    """The fields are those, and a dict read from JSON makes one."""
    data = {"max_attention_window": [1, 2], "sink_token_length": 4}
    fields = {
        name
        for name, value in inspect.getmembers(trtllm.RuntimeDefaults)
        if isinstance(value, property) or (not callable(value) and not name.startswith("_"))
    }
    assert fields == data.keys()
    reads(trtllm.RuntimeDefaults(**data), **data)
    reads(trtllm.RuntimeDefaults(), **dict.fromkeys(data))
