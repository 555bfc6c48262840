"""Names of TensorRT-LLM's that weft does not have, and are no fields that it refuses: why, and what to do.

Fields have their reasons in `weft.executor.types.refused`. A key is "Class.name", "Class.method.parameter", a function,
or a class.
"""

from __future__ import annotations

_ENCODER = "models have no encoder; give a decoder's checkpoint"
_BUFFERS = (
    "there are no built engines; give a checkpoint's directory, or its weights in memory: "
    "Executor(weights, config, config_json=...)"
)
_ONE_EXECUTOR = "prompt and answer are computed by the same executor; leave it out"
_BY_PLACE = "give it as the first value, without a name"
_SALT = "every request finds the blocks of every other; where they must not, KvCacheConfig(enable_block_reuse=False)"
_EVENTS = "no events are kept; Executor.get_latest_iteration_stats counts blocks"
_EMPTY = "it would always be empty, as what fills it is refused"

ABSENT: dict[str, str] = {
    "Executor.encoder_model_path": _ENCODER,
    "Executor.decoder_model_path": _ENCODER,
    "Executor.engine_buffer": _BUFFERS,
    "Executor.json_config_str": _BUFFERS,
    "Executor.managed_weights": _BUFFERS,
    "Executor.encoder_engine_buffer": _ENCODER,
    "Executor.encoder_json_config_str": _ENCODER,
    "Executor.decoder_engine_buffer": _ENCODER,
    "Executor.decoder_json_config_str": _ENCODER,
    "Executor.model_path": _BY_PLACE,
    "Executor.model_type": "give it as the second value, without a name, or leave it out",
    "Executor.await_responses.id": _BY_PLACE,
    "Executor.await_responses.ids": _BY_PLACE,
    "Executor.get_num_responses_ready.id": _BY_PLACE,
    "Executor.cancel_request.id": _BY_PLACE,
    "Executor.get_latest_debug_tensors": (
        "ask for additional_model_outputs, or keep a flight recorder (ExecutorConfig.flight_recorder)"
    ),
    "Executor.get_kv_cache_event_manager": _EVENTS,
    "KvCacheConfig.fill_empty_fields_from_runtime_defaults": "there is no built engine to take defaults from",
    "Result.avg_decoded_tokens_per_iter": "divide the tokens by decoding_iter + 1",
    "TimingMetrics.kv_cache_transfer_start": _EMPTY,
    "TimingMetrics.kv_cache_transfer_end": _EMPTY,
    "TimingMetrics.kv_cache_size": _EMPTY,
    "SamplingConfig.prompt_ignore_length": "penalties have no such bound; leave it out",
    "Request.cache_salt_id": _SALT,
    "Request.cache_salt": _SALT,
    "Request.disagg_request_id": _ONE_EXECUTOR,
    "SchedulerConfig.enable_prefix_aware_scheduling": "requests are served in turn; leave it out",
    "deserialize_result": "results have to_json and from_json",
    "__version__": "it is weft.__version__",
    "kv_cache": _EVENTS,
    "CacheTransceiverBackendType": _ONE_EXECUTOR,
    "DebugTensorsPerIteration": "no debug tensors are kept; ask for additional_model_outputs",
    "DisServingRequestStats": _EMPTY,
    "KvCacheTransferMode": "keys and values stay on the device; leave it out",
    "SpeculativeDecodingFastLogitsInfo": _EMPTY,
}
"""What weft does not have."""

BY_USE: dict[str, str] = {
    "ModelType.ENCODER_ONLY": _ENCODER,
    "ModelType.ENCODER_DECODER": _ENCODER,
    "RequestType.REQUEST_TYPE_CONTEXT_ONLY": _ONE_EXECUTOR,
    "RequestType.REQUEST_TYPE_GENERATION_ONLY": _ONE_EXECUTOR,
}
"""What weft has, and refuses wherever it is given."""
