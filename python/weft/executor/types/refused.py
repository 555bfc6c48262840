"""TensorRT-LLM's names that weft does not have, each with the reason and what to do instead."""

from __future__ import annotations

_ADAPTERS = "adapters are not loaded at run time; merge them into the checkpoint"
_DRAFTER = "the executor decides how it drafts: ExecutorConfig(spec_dec_config=SpeculativeConfig(...))"
_ENCODER = "models have no encoder; give the whole text as input_token_ids"
_EXACT = "drafts are verified exactly, by the token that the target samples; give the tokens alone"
_HOST_CACHE = "keys and values stay on the device; leave it out, and size the cache with max_tokens"
_IMAGES = "models read text only; give its tokens as input_token_ids"
_ONE_EXECUTOR = "prompt and answer are computed by the same executor"
_SIZE = "give the number of tokens as max_tokens"
_TOP_P = "give a fixed top_p, or min_p, which follows the likeliest token"
_VOCABULARY = "the vocabulary is read from the model's tokenizer; give the executor another tokenizer instead"
_WINDOW = "attention reaches over the whole text"

REFUSED = {
    "Request.position_ids": "positions are counted from 0; leave it out",
    "Request.prompt_tuning_config": "prompts are tokens, not embeddings; give input_token_ids alone",
    "Request.multimodal_input": _IMAGES,
    "Request.multimodal_embedding": _IMAGES,
    "Request.mrope_config": _IMAGES,
    "Request.lora_config": _ADAPTERS,
    "Request.lookahead_config": _DRAFTER,
    "Request.encoder_input_token_ids": _ENCODER,
    "Request.type": f"{_ONE_EXECUTOR}; leave it out",
    "Request.context_phase_params": f"{_ONE_EXECUTOR}; leave it out",
    "Request.encoder_input_features": _ENCODER,
    "Request.encoder_output_length": _ENCODER,
    "Request.cross_attention_mask": _ENCODER,
    "Request.num_return_sequences": "give SamplingConfig(num_return_sequences=...)",
    "Request.eagle_config": _DRAFTER,
    "Request.skip_cross_attn_blocks": _ENCODER,
    "Request.language_adapter_uid": _ADAPTERS,
    "SamplingConfig.top_p_min": _TOP_P,
    "SamplingConfig.top_p_reset_ids": "top_p does not decay, so nothing is reset; leave it out",
    "SamplingConfig.top_p_decay": _TOP_P,
    "SamplingConfig.no_repeat_ngram_size": (
        "use frequency_penalty or bad_words, or a logits post-processor that forbids the tokens"
    ),
    "SamplingConfig.beam_width_array": "the beam width stays the same throughout an answer; give beam_width",
    "OutputConfig.return_encoder_output": "models have no encoder; leave it False",
    "ExternalDraftTokensConfig.logits": _EXACT,
    "ExternalDraftTokensConfig.acceptance_threshold": _EXACT,
    "ExternalDraftTokensConfig.fast_logits": _EXACT,
    "SpeculativeConfig.fast_logits": "drafter and target run in one engine, which sends no logits",
    "GuidedDecodingConfig.encoded_vocab": _VOCABULARY,
    "GuidedDecodingConfig.tokenizer_str": _VOCABULARY,
    "GuidedDecodingConfig.stop_token_ids": (
        "the model's own end tokens end guided answers; give a request's end_id for another"
    ),
    "KvCacheConfig.max_attention_window": f"{_WINDOW}; leave it out",
    "KvCacheConfig.sink_token_length": f"{_WINDOW}; leave it out",
    "KvCacheConfig.free_gpu_memory_fraction": _SIZE,
    "KvCacheConfig.host_cache_size": _HOST_CACHE,
    "KvCacheConfig.onboard_blocks": _HOST_CACHE,
    "KvCacheConfig.cross_kv_cache_fraction": "models have no encoder, and so no cross attention",
    "KvCacheConfig.secondary_offload_min_priority": _HOST_CACHE,
    "KvCacheConfig.event_buffer_max_size": (
        "no events are kept; Executor.get_latest_iteration_stats counts blocks"
    ),
    "KvCacheConfig.use_uvm": _HOST_CACHE,
    "KvCacheConfig.attention_dp_events_gather_period_ms": "there is one rank, and no events are kept",
    "KvCacheConfig.max_gpu_total_bytes": _SIZE,
    "KvCacheConfig.runtime_defaults": "there is no built engine to take defaults from",
    "KvCacheRetentionConfig.transfer_mode": _HOST_CACHE,
    "KvCacheRetentionConfig.directory": _HOST_CACHE,
    "SchedulerConfig.dynamic_batch_config": (
        "batch limits do not tune themselves; give max_batch_size and max_num_tokens"
    ),
    "LogitsPostProcessorConfig.replicate": "there is one rank, where every processor runs",
    "ExecutorConfig.normalize_log_probs": (
        "log-probabilities are those of the whole vocabulary; for what the model gives, ask for generation logits"
    ),
    "ExecutorConfig.parallel_config": "an executor runs on one device, in this process; leave it out",
    "ExecutorConfig.peft_cache_config": _ADAPTERS,
    "ExecutorConfig.decoding_config": (
        "requests decide how they decode (SamplingConfig); give spec_dec_config for drafts, instead of Medusa, "
        "lookahead or Eagle choices"
    ),
    "ExecutorConfig.use_gpu_direct_storage": "weights are read by the host",
    "ExecutorConfig.gpu_weights_percent": "all weights stay on the device",
    "ExecutorConfig.extended_runtime_perf_knob_config": (
        "what is captured is said by graphs; the rest is not a choice"
    ),
    "ExecutorConfig.debug_config": (
        "tensors come out by additional_model_outputs; flight_recorder keeps iterations"
    ),
    "ExecutorConfig.recv_poll_period_ms": "requests are not polled for; they wake the executor",
    "ExecutorConfig.additional_output_names": "it has a newer name: additional_model_outputs",
    "ExecutorConfig.cache_transceiver_config": _ONE_EXECUTOR,
    "ExecutorConfig.mm_embedding_offloading": "models read text only",
    "ExecutorConfig.enable_trt_overlap": "give overlap=True",
    "ExecutorConfig.fail_fast_on_attention_window_too_large": _WINDOW,
    "ExecutorConfig.use_variable_beam_width_search": "the beam width stays the same throughout an answer",
}
"""Fields that take their default only, and why. They have a place in the classes, so that programs that say the default
run."""

_CLASSES = {
    "ExecutorConfig.cache_transceiver_config": "CacheTransceiverConfig",
    "ExecutorConfig.debug_config": "DebugConfig",
    "ExecutorConfig.decoding_config": "DecodingConfig DecodingMode EagleConfig LookaheadDecodingConfig",
    "ExecutorConfig.extended_runtime_perf_knob_config": "ExtendedRuntimePerfKnobConfig",
    "ExecutorConfig.parallel_config": "CommunicationMode CommunicationType OrchestratorConfig ParallelConfig",
    "ExecutorConfig.peft_cache_config": "PeftCacheConfig",
    "KvCacheConfig.event_buffer_max_size": "KvCacheEvent KvCacheEventManager",
    "KvCacheConfig.runtime_defaults": "RuntimeDefaults",
    "Request.context_phase_params": "ContextPhaseParams",
    "Request.lora_config": "LoraConfig",
    "Request.mrope_config": "MropeConfig",
    "Request.multimodal_input": "MultimodalInput",
    "Request.prompt_tuning_config": "PromptTuningConfig",
    "SchedulerConfig.dynamic_batch_config": "DynamicBatchConfig",
}
CLASSES = {name: field for field, names in _CLASSES.items() for name in names.split()}
"""Classes that only a refused field takes, and the field."""

RENAMED = {
    "JSONSerialization": "statistics, and all other classes, have to_json and from_json of their own",
    "RequestPerfMetrics": "it is called PerfMetrics",
    "SpeculativeDecodingConfig": "it is called SpeculativeConfig",
}


def refusal(name: str) -> str | None:
    """Why there is no class of this name, and what to do; None for a name that TensorRT-LLM has not either."""
    if name in RENAMED:
        return f"weft.executor has no {name}: {RENAMED[name]}"
    if name not in CLASSES:
        return None
    field = CLASSES[name]
    return f"weft.executor has no {name}, as {field} is not supported: {REFUSED[field]}"
