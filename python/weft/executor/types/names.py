"""`ModelType`, and TensorRT-LLM's names that have no class here, each with what to do instead."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum

from weft.errors import InputError
from weft.executor.types.config import ExecutorConfig
from weft.executor.types.kv import KvCacheConfig
from weft.executor.types.request import Request
from weft.executor.types.scheduler import SchedulerConfig


class ModelType(Enum):
    """What `Executor(model, ModelType.DECODER_ONLY, config)` says of a model. The others are refused."""

    DECODER_ONLY = 0
    ENCODER_ONLY = 1
    ENCODER_DECODER = 2

    def check(self) -> None:
        """Raise `InputError` unless models of this type are served."""
        if self is not ModelType.DECODER_ONLY:
            raise InputError(
                f"ModelType.{self.name} is not supported: models have no encoder; give ModelType.DECODER_ONLY and a "
                "decoder's checkpoint"
            )


_OF_FIELDS: dict[str, tuple[type, str]] = {
    "CacheTransceiverConfig": (ExecutorConfig, "cache_transceiver_config"),
    "CommunicationMode": (ExecutorConfig, "parallel_config"),
    "CommunicationType": (ExecutorConfig, "parallel_config"),
    "ContextPhaseParams": (Request, "context_phase_params"),
    "DebugConfig": (ExecutorConfig, "debug_config"),
    "DecodingConfig": (ExecutorConfig, "decoding_config"),
    "DecodingMode": (ExecutorConfig, "decoding_config"),
    "DynamicBatchConfig": (SchedulerConfig, "dynamic_batch_config"),
    "EagleConfig": (ExecutorConfig, "decoding_config"),
    "ExtendedRuntimePerfKnobConfig": (ExecutorConfig, "extended_runtime_perf_knob_config"),
    "KvCacheEvent": (KvCacheConfig, "event_buffer_max_size"),
    "KvCacheEventManager": (KvCacheConfig, "event_buffer_max_size"),
    "LookaheadDecodingConfig": (ExecutorConfig, "decoding_config"),
    "LoraConfig": (Request, "lora_config"),
    "MropeConfig": (Request, "mrope_config"),
    "MultimodalInput": (Request, "multimodal_input"),
    "OrchestratorConfig": (ExecutorConfig, "parallel_config"),
    "ParallelConfig": (ExecutorConfig, "parallel_config"),
    "PeftCacheConfig": (ExecutorConfig, "peft_cache_config"),
    "PromptTuningConfig": (Request, "prompt_tuning_config"),
    "RuntimeDefaults": (KvCacheConfig, "runtime_defaults"),
}
"""Classes that only refused fields take."""

_RENAMED = {
    "JSONSerialization": "statistics, and all other classes, have to_json and from_json of their own",
    "RequestPerfMetrics": "it is called PerfMetrics",
    "SpeculativeDecodingConfig": "it is called SpeculativeConfig",
}


def refusal(name: str) -> str | None:
    """Why there is no class of this name, and what to do; None for a name that TensorRT-LLM has not either."""
    if name in _RENAMED:
        return f"weft.executor has no {name}: {_RENAMED[name]}"
    if name not in _OF_FIELDS:
        return None
    owner, field_name = _OF_FIELDS[name]
    instead = next(one for one in fields(owner) if one.name == field_name).metadata["refused"]
    return f"weft.executor has no {name}, as {owner.__name__}.{field_name} is not supported: {instead}"
