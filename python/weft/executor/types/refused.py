"""Tables of TensorRT-LLM's fields and names that weft refuses, ignores, interprets differently or calls differently.
Refusals have a reason and an alternative."""

from __future__ import annotations

from weft.errors import InputError

_ADAPTERS = "adapters (LoRA) are not loaded at run time; merge them into the checkpoint"
_DRAFTER = "the executor decides how it drafts: ExecutorConfig(speculation=weft.Speculation.eagle3(...))"
_ENCODER = "models have no encoder; give the whole text as input_token_ids"
_IMAGES = "models read text only; give its tokens as input_token_ids"
_ONE_EXECUTOR = "prompt and answer are computed by the same executor; leave it out"
_TRANSFER = "blocks go to the host by copies of the device; leave it out"

REFUSED = {
    "Request.position_ids": "positions are counted from 0; leave it out",
    "Request.prompt_tuning_config": "prompts are tokens, not embeddings; give input_token_ids alone",
    "Request.multimodal_input": _IMAGES,
    "Request.multimodal_embedding": _IMAGES,
    "Request.mrope_config": _IMAGES,
    "Request.lora_config": _ADAPTERS,
    "Request.encoder_input_token_ids": _ENCODER,
    "Request.type": _ONE_EXECUTOR,
    "Request.context_phase_params": _ONE_EXECUTOR,
    "Request.encoder_input_features": _ENCODER,
    "Request.encoder_output_length": _ENCODER,
    "Request.cross_attention_mask": _ENCODER,
    "Request.eagle_config": _DRAFTER,
    "Request.skip_cross_attn_blocks": _ENCODER,
    "Request.language_adapter_uid": _ADAPTERS,
    "Request.disagg_request_id": _ONE_EXECUTOR,
    "OutputConfig.return_encoder_output": "models have no encoder; leave it False",
    "ExternalDraftTokensConfig.acceptance_threshold": (
        "a draft is accepted where it is the token that the target chooses; leave it out"
    ),
    "ExternalDraftTokensConfig.fast_logits": "logits are not sent from one executor to another; leave it out",
    "SpeculativeDecodingConfig.fast_logits": "logits are not sent from one executor to another; leave it out",
    "KvCacheConfig.cross_kv_cache_fraction": "models have no encoder, and so no cross attention; leave it out",
    "KvCacheConfig.onboard_blocks": "blocks on the host are read on the device; leave it True",
    "KvCacheConfig.use_uvm": "blocks are on the device, or with host_cache_size on the host; leave it out",
    "KvCacheRetentionConfig.transfer_mode": _TRANSFER,
    "KvCacheRetentionConfig.directory": _TRANSFER,
    "DecodingConfig.medusa_choices": _DRAFTER,
    "DecodingConfig.eagle_config": _DRAFTER,
    "ExecutorConfig.gpu_weights_percent": "all weights are on the device; leave it out",
    "ExecutorConfig.cache_transceiver_config": _ONE_EXECUTOR,
}
"""Refused fields with the reason. They can be assigned, but must have their default when an executor is made or a
request is enqueued. `ParallelConfig` checks its own fields."""

NO_EFFECT = {
    "ExecutorConfig.backend": "it names a backend of TensorRT-LLM's",
    "ExecutorConfig.peft_cache_config": "no adapters are loaded at run time",
    "ExecutorConfig.use_gpu_direct_storage": "weights are read by the host",
    "ExecutorConfig.extended_runtime_perf_knob_config": "it turns knobs of TensorRT-LLM's kernels",
    "ExecutorConfig.use_variable_beam_width_search": "beam_width_array is always taken",
    "ExecutorConfig.recv_poll_period_ms": "requests are not polled for; they wake the executor",
    "ExecutorConfig.mm_embedding_offloading": "models read text only",
    "ExternalDraftTokensConfig.logits": "drafts are verified exactly without them",
    "KvCacheConfig.attention_dp_events_gather_period_ms": "there is one rank",
    "LogitsPostProcessorConfig.replicate": "there is one rank, where every processor runs",
    "Request.pad_id": "outputs are never padded",
}
"""Fields that are accepted but have no effect, with the reason."""

OTHERWISE = {
    "ExecutorConfig.fail_fast_on_attention_window_too_large": (
        "the cache must have room for a text of max_seq_len, in TensorRT-LLM for its window; without it TensorRT-LLM "
        "shortens windows and texts, weft refuses requests that are too long"
    ),
    "KvCacheConfig.sink_token_length": (
        "sinks hold while a prompt is read, too, and positions stay those of the text; engines built for StreamingLLM "
        "count positions in the cache"
    ),
    "SamplingConfig.beam_search_diversity_rate": (
        "the bonus is never part of the sums; beyond 8 beams TensorRT-LLM's kernels leave it there"
    ),
    "SamplingConfig.top_p_reset_ids": "the token resets top_p, as is documented; in TensorRT-LLM's kernels it does not",
}
"""Fields that differ in meaning from TensorRT-LLM's, with the difference."""

RENAMED = {
    "JSONSerialization": "statistics have to_json_str, and all classes to_json and from_json",
    "PerfMetrics": "it is called RequestPerfMetrics",
    "SpeculativeConfig": "say how tokens are drafted by ExecutorConfig(speculation=weft.Speculation.eagle3(...))",
}

OLDER_NAMES = {
    "ExecutorConfig.additional_output_names": "additional_model_outputs, a list of AdditionalModelOutput(name)",
    "Request.max_new_tokens": "max_tokens",
    "SamplingConfig.random_seed": "seed",
    "SamplingConfig.min_length": "min_tokens",
}
"""Maps names of earlier versions to the current names."""


class MissingNameError(InputError, AttributeError):
    """The error for an unknown name of `weft.executor`. It is also an `AttributeError`, so that `hasattr`, and
    `getattr` with a default, work."""


def refusal(name: str) -> str | None:
    """The reason why weft has no class of this TensorRT-LLM name, with an alternative; None for any other name."""
    return f"weft.executor has no {name}: {RENAMED[name]}" if name in RENAMED else None
