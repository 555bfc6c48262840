"""The public classes of `weft.executor`: TensorRT-LLM's Executor API, with names in Python's style."""

from weft.executor.types.adapters import LoraConfig, PeftCacheConfig
from weft.executor.types.config import ExecutorConfig, FlightRecorderConfig, ModelType
from weft.executor.types.decoding_mode import DecodingMode
from weft.executor.types.embeddings import MropeConfig, MultimodalInput, PromptTuningConfig
from weft.executor.types.guided import (
    GuidedDecodingBackend,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    GuideType,
)
from weft.executor.types.knobs import DebugConfig, DebugTensorsPerIteration, ExtendedRuntimePerfKnobConfig
from weft.executor.types.kv import (
    KvCacheConfig,
    KvCacheRetentionConfig,
    KvCacheTransferMode,
    RuntimeDefaults,
    TokenRangeRetentionConfig,
)
from weft.executor.types.metrics import (
    KvCacheMetrics,
    RequestPerfMetrics,
    SpeculativeDecodingMetrics,
    TimingMetrics,
)
from weft.executor.types.output import AdditionalModelOutput, OutputConfig
from weft.executor.types.parallel import (
    CacheTransceiverConfig,
    CommunicationMode,
    CommunicationType,
    ContextPhaseParams,
    OrchestratorConfig,
    ParallelConfig,
)
from weft.executor.types.processors import LogitsPostProcessorConfig
from weft.executor.types.request import LogitsPostProcessor, Request, RequestType
from weft.executor.types.response import (
    AdditionalOutput,
    FinishReason,
    Response,
    Result,
    deserialize_result,
)
from weft.executor.types.sampling import SamplingConfig
from weft.executor.types.scheduler import (
    BatchingType,
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    DynamicBatchConfig,
    SchedulerConfig,
)
from weft.executor.types.speculation import (
    DecodingConfig,
    EagleConfig,
    ExternalDraftTokensConfig,
    LookaheadDecodingConfig,
    SpeculativeDecodingConfig,
    SpeculativeDecodingFastLogitsInfo,
)
from weft.executor.types.stats import (
    DisServingRequestStats,
    InflightBatchingStats,
    IterationStats,
    KvCacheStats,
    RequestStage,
    RequestStats,
    RequestStatsPerIteration,
    SpecDecodingStats,
    StaticBatchingStats,
)

__all__ = [
    "AdditionalModelOutput",
    "AdditionalOutput",
    "BatchingType",
    "CacheTransceiverConfig",
    "CapacitySchedulerPolicy",
    "CommunicationMode",
    "CommunicationType",
    "ContextChunkingPolicy",
    "ContextPhaseParams",
    "DebugConfig",
    "DebugTensorsPerIteration",
    "DecodingConfig",
    "DecodingMode",
    "DisServingRequestStats",
    "DynamicBatchConfig",
    "EagleConfig",
    "ExecutorConfig",
    "ExtendedRuntimePerfKnobConfig",
    "ExternalDraftTokensConfig",
    "FinishReason",
    "FlightRecorderConfig",
    "GuideType",
    "GuidedDecodingBackend",
    "GuidedDecodingConfig",
    "GuidedDecodingParams",
    "InflightBatchingStats",
    "IterationStats",
    "KvCacheConfig",
    "KvCacheMetrics",
    "KvCacheRetentionConfig",
    "KvCacheStats",
    "KvCacheTransferMode",
    "LogitsPostProcessor",
    "LogitsPostProcessorConfig",
    "LookaheadDecodingConfig",
    "LoraConfig",
    "ModelType",
    "MropeConfig",
    "MultimodalInput",
    "OrchestratorConfig",
    "OutputConfig",
    "ParallelConfig",
    "PeftCacheConfig",
    "PromptTuningConfig",
    "Request",
    "RequestPerfMetrics",
    "RequestStage",
    "RequestStats",
    "RequestStatsPerIteration",
    "RequestType",
    "Response",
    "Result",
    "RuntimeDefaults",
    "SamplingConfig",
    "SchedulerConfig",
    "SpecDecodingStats",
    "SpeculativeDecodingConfig",
    "SpeculativeDecodingFastLogitsInfo",
    "SpeculativeDecodingMetrics",
    "StaticBatchingStats",
    "TimingMetrics",
    "TokenRangeRetentionConfig",
    "deserialize_result",
]
