"""What TensorRT-LLM's bindings are called with: the classes, their arguments in order, the members, the keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import weft.executor as trtllm
from support.trtllm import PROMPT, half_memory, the_tokens

ARGUMENTS = {
    "AdditionalModelOutput": "name gather_context",
    "AdditionalOutput": "name output",
    "CacheTransceiverConfig": "max_num_tokens",
    "DebugConfig": """
        debug_input_tensors debug_output_tensors debug_tensor_names debug_tensors_max_iterations
    """,
    "DecodingConfig": "decoding_mode lookahead_decoding_config medusa_choices eagle_config",
    "DynamicBatchConfig": """
        enable_batch_size_tuning enable_max_num_tokens_tuning dynamic_batch_moving_average_window
    """,
    "EagleConfig": """
        eagle_choices greedy_sampling posterior_threshold use_dynamic_tree dynamic_tree_max_topK
    """,
    "ExecutorConfig": """
        max_beam_width scheduler_config kv_cache_config enable_chunked_context normalize_log_probs
        iter_stats_max_iterations request_stats_max_iterations batching_type max_batch_size max_num_tokens
        parallel_config peft_cache_config logits_post_processor_config decoding_config use_gpu_direct_storage
        gpu_weights_percent max_queue_size extended_runtime_perf_knob_config debug_config recv_poll_period_ms
        max_seq_idle_microseconds spec_dec_config guided_decoding_config additional_model_outputs
        cache_transceiver_config gather_generation_logits mm_embedding_offloading enable_trt_overlap
    """,
    "ExtendedRuntimePerfKnobConfig": "multi_block_mode enable_context_fmha_fp32_acc",
    "ExternalDraftTokensConfig": "tokens logits acceptance_threshold fast_logits",
    "GuidedDecodingConfig": "backend encoded_vocab tokenizer_str stop_token_ids",
    "GuidedDecodingParams": "guide_type guide",
    "KvCacheConfig": """
        enable_block_reuse max_tokens max_attention_window sink_token_length free_gpu_memory_fraction host_cache_size
        onboard_blocks cross_kv_cache_fraction secondary_offload_min_priority event_buffer_max_size
        | enable_partial_reuse copy_on_partial_reuse use_uvm runtime_defaults
    """,
    "KvCacheRetentionConfig": """
        token_range_retention_configs decode_retention_priority decode_duration_ms transfer_mode directory
    """,
    "LogitsPostProcessorConfig": "processor_map processor_batched replicate",
    "LookaheadDecodingConfig": "max_window_size max_ngram_size max_verification_set_size",
    "LoraConfig": "task_id weights config",
    "MropeConfig": "mrope_rotary_cos_sin mrope_position_deltas",
    "MultimodalInput": "multimodal_hashes multimodal_positions multimodal_lengths",
    "OrchestratorConfig": "is_orchestrator worker_executable_path orch_leader_comm spawn_processes",
    "OutputConfig": """
        return_log_probs return_context_logits return_generation_logits exclude_input_from_output return_encoder_output
        return_perf_metrics additional_model_outputs
    """,
    "ParallelConfig": """
        communication_type communication_mode device_ids participant_ids orchestrator_config num_nodes
    """,
    "PeftCacheConfig": """
        num_host_module_layer num_device_module_layer optimal_adapter_size max_adapter_size num_put_workers
        num_ensure_workers num_copy_streams max_pages_per_block_host max_pages_per_block_device device_cache_percent
        host_cache_size lora_prefetch_dir
    """,
    "PromptTuningConfig": "embedding_table input_token_extra_ids",
    "Request": """
        input_token_ids max_tokens | streaming sampling_config output_config end_id pad_id position_ids bad_words
        stop_words embedding_bias external_draft_tokens_config prompt_tuning_config multimodal_input
        multimodal_embedding mrope_config lora_config lookahead_config kv_cache_retention_config
        logits_post_processor_name logits_post_processor encoder_input_token_ids client_id
        return_all_generated_tokens priority type context_phase_params encoder_input_features encoder_output_length
        cross_attention_mask num_return_sequences eagle_config skip_cross_attn_blocks guided_decoding_params
        language_adapter_uid allotted_time_ms
    """,
    "RuntimeDefaults": "max_attention_window sink_token_length",
    "SamplingConfig": """
        beam_width | top_k top_p top_p_min top_p_reset_ids top_p_decay seed temperature min_tokens
        beam_search_diversity_rate repetition_penalty presence_penalty frequency_penalty length_penalty early_stopping
        no_repeat_ngram_size num_return_sequences min_p beam_width_array
    """,
    "SchedulerConfig": "capacity_scheduler_policy context_chunking_policy dynamic_batch_config",
    "SpeculativeDecodingConfig": "fast_logits",
    "TokenRangeRetentionConfig": "token_start token_end priority duration_ms",
}
"""Arguments of constructors, in order; those behind a bar by name only."""

MEMBERS = {
    "BatchingType": "STATIC INFLIGHT",
    "CapacitySchedulerPolicy": "MAX_UTILIZATION GUARANTEED_NO_EVICT STATIC_BATCH",
    "CommunicationMode": "LEADER ORCHESTRATOR",
    "CommunicationType": "MPI",
    "ContextChunkingPolicy": "EQUAL_PROGRESS FIRST_COME_FIRST_SERVED",
    "FinishReason": "NOT_FINISHED END_ID STOP_WORDS LENGTH TIMED_OUT CANCELLED",
    "KvCacheTransferMode": "DRAM GDS POSIX_DEBUG_FALLBACK",
    "ModelType": "DECODER_ONLY ENCODER_ONLY ENCODER_DECODER",
    "RequestStage": """
        QUEUED ENCODER_IN_PROGRESS CONTEXT_IN_PROGRESS GENERATION_IN_PROGRESS GENERATION_COMPLETE
    """,
}
WITHOUT_ARGUMENTS = """
    DebugTensorsPerIteration DisServingRequestStats InflightBatchingStats IterationStats KvCacheMetrics KvCacheStats
    RequestPerfMetrics RequestStats RequestStatsPerIteration Result SpecDecodingStats SpeculativeDecodingFastLogitsInfo
    SpeculativeDecodingMetrics StaticBatchingStats TimingMetrics
"""
EVENTS = """
    KVCacheCreatedData KVCacheEvent KVCacheEventDiffInt KVCacheEventManager KVCacheRemovedData KVCacheStoredBlockData
    KVCacheStoredData KVCacheUpdatedData UniqueToken
"""


def class_of(name: str) -> Any:
    """A class of the API. The range of a retention config stands within that."""
    if name == "TokenRangeRetentionConfig":
        return trtllm.KvCacheRetentionConfig.TokenRangeRetentionConfig
    return getattr(trtllm, name)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of(name: str) -> None:
    positional, _, by_name = ARGUMENTS[name].partition("|")
    parameters = inspect.signature(class_of(name)).parameters
    in_order = [key for key, one in parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    expected = positional.split()
    assert in_order[: len(expected)] == expected
    assert set(by_name.split()) <= parameters.keys()


@pytest.mark.parametrize("name", MEMBERS)
def test_members_of(name: str) -> None:
    found = getattr(trtllm, name).__members__
    assert set(MEMBERS[name].split()) <= found.keys()


@pytest.mark.parametrize("name", WITHOUT_ARGUMENTS.split())
def test_made_without_arguments(name: str) -> None:
    made = getattr(trtllm, name)
    assert isinstance(made(), made)


def test_events_have_a_room_of_their_own() -> None:
    assert [name for name in EVENTS.split() if not hasattr(trtllm.kv_cache, name)] == []


def test_a_name_that_nobody_has_can_be_asked_for() -> None:
    """Programs find out what there is with `hasattr`."""
    assert not hasattr(trtllm, "NoSuchConfig")
    assert hasattr(trtllm, "LoraConfig")


def test_keywords_of_the_executor(model_path: Path) -> None:
    """All arguments by name, and each form of waiting."""
    executor = trtllm.Executor(
        model_path=model_path, model_type=trtllm.ModelType.DECODER_ONLY, executor_config=half_memory()
    )
    with executor as entered:
        assert entered is executor
        number = executor.enqueue_request(request=trtllm.Request(PROMPT, max_tokens=3))
        (response,) = executor.await_responses(id=number, timeout=timedelta(seconds=60))
        assert not response.has_error()
        numbers = executor.enqueue_requests(requests=[trtllm.Request(PROMPT, max_tokens=3)] * 2)
        lists = executor.await_responses(ids=numbers, timeout=timedelta(seconds=60))
        assert [len(told) for told in lists] == [1, 1]
        assert executor.get_num_responses_ready(id=numbers[0]) == 0
        executor.cancel_request(id=numbers[0])
        assert executor.await_responses(timeout=timedelta(milliseconds=1)) == []
    assert executor.can_enqueue_requests() is False


def test_keywords_of_an_engine_in_memory(model_path: Path, launch: Callable[..., Any]) -> None:
    request = trtllm.Request(PROMPT, max_tokens=3)
    with trtllm.Executor(
        engine_buffer=(model_path / "model.safetensors").read_bytes(),
        json_config_str=(model_path / "config.json").read_text(),
        model_type=trtllm.ModelType.DECODER_ONLY,
        executor_config=half_memory(),
    ) as executor:
        said = the_tokens(executor, request)
    assert said == the_tokens(launch(half_memory()), request)
