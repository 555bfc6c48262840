"""The public classes of `weft.executor`: TensorRT-LLM's Executor API, with its names in Python's form."""

from weft.executor.types.config import ExecutorConfig, FlightRecorderConfig, ModelType
from weft.executor.types.guided import (
    GuidedDecodingBackend,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    GuideType,
)
from weft.executor.types.kv import KvCacheConfig, KvCacheRetentionConfig, TokenRangeRetentionConfig
from weft.executor.types.metrics import (
    KvCacheMetrics,
    PerfMetrics,
    SpeculativeDecodingMetrics,
    TimingMetrics,
)
from weft.executor.types.output import AdditionalModelOutput, OutputConfig
from weft.executor.types.processors import LogitsPostProcessorConfig
from weft.executor.types.request import LogitsPostProcessor, Request, RequestType
from weft.executor.types.response import AdditionalOutput, FinishReason, Response, Result
from weft.executor.types.sampling import SamplingConfig
from weft.executor.types.scheduler import (
    BatchingType,
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    SchedulerConfig,
)
from weft.executor.types.speculation import ExternalDraftTokensConfig, SpeculativeConfig
from weft.executor.types.stats import (
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
    "CapacitySchedulerPolicy",
    "ContextChunkingPolicy",
    "ExecutorConfig",
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
    "LogitsPostProcessor",
    "LogitsPostProcessorConfig",
    "ModelType",
    "OutputConfig",
    "PerfMetrics",
    "Request",
    "RequestStage",
    "RequestStats",
    "RequestStatsPerIteration",
    "RequestType",
    "Response",
    "Result",
    "SamplingConfig",
    "SchedulerConfig",
    "SpecDecodingStats",
    "SpeculativeConfig",
    "SpeculativeDecodingMetrics",
    "StaticBatchingStats",
    "TimingMetrics",
    "TokenRangeRetentionConfig",
]
