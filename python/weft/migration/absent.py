"""TensorRT-LLM's names that weft lacks or refuses, with the reason and the remedy. `weft.executor.types.refused` lists
further fields.

A key is "Class.name", "Class.method.parameter", a function, a class, or "submodule.*" for all classes of a submodule.
"""

from __future__ import annotations

_ENCODER = "models have no encoder; give a decoder's checkpoint"
_ONE_DEVICE = "an executor runs on one device, in this process; leave it out"
_ONE_EXECUTOR = "prompt and answer are computed by the same executor; leave it out"

ABSENT: dict[str, str] = {
    "CacheTransceiverBackendType": _ONE_EXECUTOR,
    "CacheTransceiverConfig.backend": _ONE_EXECUTOR,
    "CacheTransceiverConfig.kv_transfer_poll_interval_ms": _ONE_EXECUTOR,
    "CacheTransceiverConfig.kv_transfer_sender_future_timeout_ms": _ONE_EXECUTOR,
    "CacheTransceiverConfig.kv_transfer_timeout_ms": _ONE_EXECUTOR,
    "CacheTransceiverConfig.max_tokens_in_buffer": _ONE_EXECUTOR,
    "Executor.decoder_engine_buffer": _ENCODER,
    "Executor.decoder_json_config_str": _ENCODER,
    "Executor.decoder_model_path": _ENCODER,
    "Executor.encoder_engine_buffer": _ENCODER,
    "Executor.encoder_json_config_str": _ENCODER,
    "Executor.encoder_model_path": _ENCODER,
    "KVCacheStoredBlockData.cache_salt": "a block of another salt has another block_hash",
    "Request.cache_salt": "give cache_salt_id, a number",
    "SchedulerConfig.enable_prefix_aware_scheduling": "requests are served in turn; leave it out",
}
"""Names that weft lacks."""

BY_USE: dict[str, str] = {
    "CommunicationMode.ORCHESTRATOR": _ONE_DEVICE,
    "ModelType.ENCODER_DECODER": _ENCODER,
    "ModelType.ENCODER_ONLY": _ENCODER,
    "RequestType.REQUEST_TYPE_CONTEXT_ONLY": _ONE_EXECUTOR,
    "RequestType.REQUEST_TYPE_GENERATION_ONLY": _ONE_EXECUTOR,
}
"""Members of enumerations that weft has, but does not accept as a field's value."""

PARTLY: dict[str, tuple[str, tuple[str, ...]]] = {
    "ParallelConfig.device_ids": (_ONE_DEVICE, ("[]", "[0]")),
    "ParallelConfig.num_nodes": (_ONE_DEVICE, ("1",)),
    "ParallelConfig.orchestrator_config": (_ONE_DEVICE, ()),
    "ParallelConfig.participant_ids": (_ONE_DEVICE, ("[]", "[0]")),
}
"""Fields that accept only their default or one of the listed values. An entry is the reason and these values."""
