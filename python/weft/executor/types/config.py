"""The settings of an executor: `ExecutorConfig`."""

from __future__ import annotations

from dataclasses import KW_ONLY, field
from enum import Enum
from typing import Annotated, Literal

from weft.config import ActivationDtype, EngineConfig, Graphs, HostTasks, Speculation
from weft.core import ValueKind
from weft.errors import InputError
from weft.executor.types.adapters import PeftCacheConfig
from weft.executor.types.fields import (
    ByName,
    Bytes,
    Count,
    NotNegative,
    Several,
    Share,
    Text,
    Wanted,
    Within,
    count_from,
)
from weft.executor.types.guided import GuidedDecodingConfig
from weft.executor.types.knobs import DebugConfig, ExtendedRuntimePerfKnobConfig
from weft.executor.types.kv import KvCacheConfig
from weft.executor.types.output import AdditionalModelOutput
from weft.executor.types.parallel import CacheTransceiverConfig, ParallelConfig
from weft.executor.types.processors import LogitsPostProcessorConfig
from weft.executor.types.scheduler import BatchingType, CapacitySchedulerPolicy, SchedulerConfig
from weft.executor.types.settings import Settings
from weft.executor.types.speculation import DecodingConfig, SpeculativeDecodingConfig

Overlap = Literal["auto"] | bool

DEFAULT_MAX_SEQ_IDLE_MICROSECONDS = 180_000_000
DEFAULT_MAX_QUEUE_SIZE = 16_384


_HINT = "a weft.Speculation, such as Speculation.eagle3(num_draft_tokens=3), or None for no drafts"


class ModelType(ByName, Enum):
    """The type of a model, as in `Executor(model, ModelType.DECODER_ONLY, config)`. Other types are refused."""

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


class FlightRecorderConfig(Settings):
    """Settings of the flight recorder. It keeps the last `iterations` iterations in memory, and writes them into
    `directory` when a request fails. The directory is created if needed. Without one, it only writes on demand.
    """

    iterations: Count
    directory: Text | None = None


class ExecutorConfig(Settings):
    """Settings of an executor.

    - Batches: at most `max_batch_size` requests (default 8; each beam counts as one) decode at once. An iteration
      processes at most `max_num_tokens` tokens (None: 2048, or more if a full batch needs more). A request has at
      most `max_seq_len` tokens, prompt and answer together (None: the model's limit). Without
      `enable_chunked_context` a prompt is prefilled in one iteration, unless it is longer than `max_num_tokens`. A
      preempted request that is not admitted again within `max_seq_idle_microseconds` ends as `TIMED_OUT`.
    - Limits, above which requests are refused: `max_queue_size` sequences that wait (None: 16,384);
      `max_pending_bytes` of requests that have not ended (prompts, words, texts of guides; 1 GiB);
      `max_return_sequences` sequences of one request (1,024).
    - Unread responses: above `max_unread_responses` (1,024), those of a streaming request are merged into one for
      each sequence. Above `max_unread_bytes` (256 MiB), the oldest ended requests with unread responses are forgotten.
    - `scheduler_config` and `batching_type` define the scheduling; STATIC is the policy STATIC_BATCH.
    - `max_beam_width` limits the beam width of requests; above 1 it excludes speculation.
    - `speculation`, weft's extension, defines how tokens are drafted. `guided_decoding_config` allows guided requests.
      `logits_post_processor_config` holds the processors that requests may name. `additional_model_outputs` and
      `gather_generation_logits` allow requests to return these tensors.
    - `iter_stats_max_iterations` and `request_stats_max_iterations` limit the iterations whose statistics are kept
      until they are taken (0: none).
    - With `normalize_log_probs`, log-probabilities are normalized over the `top_k` most likely tokens; without it, or
      without a `top_k`, over all tokens. Greedy requests have a `top_k` of 1.
    - `enable_trt_overlap` turns an `overlap` of "auto" into True. Settings for parts of TensorRT-LLM have no effect:
      `backend`, `peft_cache_config`, `extended_runtime_perf_knob_config`, `use_gpu_direct_storage`,
      `recv_poll_period_ms`, `mm_embedding_offloading`, `use_variable_beam_width_search`.
    - weft's extensions: `overlap` launches an iteration before the host has read the previous one ("auto": only on a
      GPU). With a `debug_config` it is off. As in `weft.EngineConfig`, `graphs` defines the parts of an iteration that
      are captured, `host_tasks` how graphs call the grammar, and `activation_dtype` how products on a CPU round the
      rows that they read. `flight_recorder` keeps the last iterations. A request may have `max_words` stop words and
      as many bad words. Each of these lists holds at most `max_word_bytes` bytes (UTF-8; four for a token id).

    Raises `InputError` for an invalid value, and for fields that weft refuses.
    """

    max_beam_width: Count = 1
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    kv_cache_config: KvCacheConfig = field(default_factory=KvCacheConfig)
    enable_chunked_context: bool = False
    normalize_log_probs: bool = True
    iter_stats_max_iterations: NotNegative = 1000
    request_stats_max_iterations: NotNegative = 0
    batching_type: BatchingType = BatchingType.INFLIGHT
    max_batch_size: Count | None = None
    max_num_tokens: Count | None = None
    parallel_config: ParallelConfig | None = None
    peft_cache_config: PeftCacheConfig | None = field(default_factory=PeftCacheConfig)
    logits_post_processor_config: LogitsPostProcessorConfig | None = None
    decoding_config: DecodingConfig | None = None
    use_gpu_direct_storage: bool = False
    gpu_weights_percent: Share = 1.0
    max_queue_size: Count | None = None
    extended_runtime_perf_knob_config: ExtendedRuntimePerfKnobConfig = field(
        default_factory=ExtendedRuntimePerfKnobConfig
    )
    debug_config: DebugConfig | None = None
    recv_poll_period_ms: NotNegative = 0
    max_seq_idle_microseconds: Annotated[int, Within(ValueKind.INTEGER, 1, 2**63 - 1, "at least 1")] = (
        DEFAULT_MAX_SEQ_IDLE_MICROSECONDS
    )
    spec_dec_config: SpeculativeDecodingConfig | None = None
    guided_decoding_config: GuidedDecodingConfig | None = None
    additional_model_outputs: Several[AdditionalModelOutput] | None = None
    cache_transceiver_config: CacheTransceiverConfig | None = None
    gather_generation_logits: bool = False
    mm_embedding_offloading: bool = False
    enable_trt_overlap: bool = False
    fail_fast_on_attention_window_too_large: bool = False
    use_variable_beam_width_search: bool = False
    _: KW_ONLY
    backend: Text | None = None
    speculation: Annotated[Speculation, Wanted(_HINT)] | None = None
    overlap: Annotated[Overlap, Wanted("'auto', True or False")] = "auto"
    graphs: Graphs = "one"
    host_tasks: HostTasks = "callback"
    activation_dtype: ActivationDtype = "auto"
    max_seq_len: Annotated[int, count_from(2)] | None = None
    max_return_sequences: Count = 1024
    max_pending_bytes: Bytes = 1 << 30
    max_unread_responses: Count = 1024
    max_unread_bytes: Bytes = 256 << 20
    flight_recorder: FlightRecorderConfig | None = None
    max_words: Count = EngineConfig.max_words
    max_word_bytes: Count = EngineConfig.max_word_bytes

    def check(self) -> None:
        if self.speculation is not None and self.speculation.drafters and self.max_beam_width > 1:
            raise InputError(
                f"max_beam_width is {self.max_beam_width}, but beams are not drafted; leave out speculation, or the "
                "beams"
            )

    @property
    def queue_size(self) -> int:
        """The number of sequences that may wait."""
        return self.max_queue_size if self.max_queue_size is not None else DEFAULT_MAX_QUEUE_SIZE

    @property
    def policy(self) -> CapacitySchedulerPolicy:
        """The effective policy: STATIC_BATCH if `batching_type` is STATIC."""
        if self.batching_type is BatchingType.STATIC:
            return CapacitySchedulerPolicy.STATIC_BATCH
        return self.scheduler_config.capacity_scheduler_policy
