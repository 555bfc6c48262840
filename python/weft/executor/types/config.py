"""The settings of an executor: `ExecutorConfig`."""

from __future__ import annotations

from dataclasses import KW_ONLY, field
from enum import Enum
from typing import Annotated, Literal

from weft.config import EngineConfig, Graphs, HostTasks, Speculation
from weft.core import Kind
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


class FlightRecorderConfig(Settings):
    """Keeps the last `iterations` iterations in memory, and writes them into `directory` when a request fails. The
    directory is made where there is none; None: only on demand.
    """

    iterations: Count
    directory: Text | None = None


class ExecutorConfig(Settings):
    """Settings of an executor.

    - `max_batch_size` requests (default 8) decode at once; an iteration reads and decodes `max_num_tokens` tokens at
      most, beams apart (None: 2048, or more where a full batch needs more); a request has `max_seq_len` tokens at most,
      prompt and answer (None: as the model can). Without `enable_chunked_context` prompts are read whole, unless they
      are longer than `max_num_tokens`.
      A request that was preempted, and is not admitted again for `max_seq_idle_microseconds`, ends as `TIMED_OUT`.
    - `max_queue_size` sequences wait at most (None: 16,384), requests that have not ended hold `max_pending_bytes`
      (prompts, words, guides' texts; 1 GiB), and one has `max_return_sequences` (1,024): more is refused. Of one that
      streams and is not read, `max_unread_responses` (1,024) are kept before they are merged into one; requests that
      have ended, and that nobody reads, hold `max_unread_bytes` (256 MiB) before the first of them are forgotten.
    - `scheduler_config` and `batching_type` say who is served; STATIC is the policy STATIC_BATCH.
    - `max_beam_width` bounds requests' beams; above 1 there is no drafting.
    - `speculation`, weft's own, says how tokens are drafted; `guided_decoding_config` lets requests be guided;
      `logits_post_processor_config` holds what they may name; `additional_model_outputs` and `gather_generation_logits`
      let them ask for these.
    - `iter_stats_max_iterations` and `request_stats_max_iterations` are how many iterations' statistics are kept until
      they are asked for (0: none).
    - With `normalize_log_probs` log-probabilities are those among the tokens that `top_k` and `top_p` leave, without
      it among all.
    - `enable_trt_overlap` is an `overlap` of True. What names TensorRT-LLM's own parts has no effect: `backend`,
      `peft_cache_config`, `extended_runtime_perf_knob_config`, `use_gpu_direct_storage`, `recv_poll_period_ms`,
      `mm_embedding_offloading`.
    - weft's own: `overlap` launches an iteration before the host has read the one before ("auto": where nothing needs
      the host between); `graphs` is what is captured, and `host_tasks` how that calls the grammar, as in
      `weft.EngineConfig`; `flight_recorder` keeps the last iterations. A request may have `max_words` stop words, and
      as many bad words; each list holds `max_word_bytes` bytes at most (texts in UTF-8, a token id counting for four).

    Raises `InputError` for a value that can't be right, and for fields that weft refuses.
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
    max_seq_idle_microseconds: Annotated[int, Within(Kind.INTEGER, 1, 2**63 - 1, "at least 1")] = (
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
        """How many sequences may wait."""
        return self.max_queue_size if self.max_queue_size is not None else DEFAULT_MAX_QUEUE_SIZE

    @property
    def policy(self) -> CapacitySchedulerPolicy:
        """The policy in force: STATIC_BATCH where `batching_type` is STATIC."""
        if self.batching_type is BatchingType.STATIC:
            return CapacitySchedulerPolicy.STATIC_BATCH
        return self.scheduler_config.capacity_scheduler_policy
