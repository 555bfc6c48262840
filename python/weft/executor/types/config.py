"""The settings of an executor: `ExecutorConfig`."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Annotated, Literal

from pydantic import Field

from weft.config import EngineConfig, Graphs, HostTasks
from weft.core import Kind
from weft.errors import InputError
from weft.executor.types.fields import (
    Bytes,
    Count,
    NotNegative,
    Several,
    Text,
    Wanted,
    Within,
    count_from,
    refused,
)
from weft.executor.types.guided import GuidedDecodingConfig
from weft.executor.types.kv import KvCacheConfig
from weft.executor.types.output import AdditionalModelOutput
from weft.executor.types.processors import LogitsPostProcessorConfig
from weft.executor.types.scheduler import BatchingType, CapacitySchedulerPolicy, SchedulerConfig
from weft.executor.types.settings import Settings
from weft.executor.types.speculation import SpeculativeConfig

Overlap = Literal["auto"] | bool

DEFAULT_MAX_SEQ_IDLE_MICROSECONDS = 180_000_000
DEFAULT_MAX_QUEUE_SIZE = 16_384


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
      prompt and answer (None: as the model can, up to 4096). Without `enable_chunked_context` prompts are read whole.
      A request that was preempted, and is not admitted again for `max_seq_idle_microseconds`, ends as `TIMED_OUT`.
    - `max_queue_size` sequences wait at most (None: 16,384), requests that have not ended hold `max_pending_bytes`
      (prompts, words, guides' texts; 1 GiB), and one has `max_return_sequences` (1,024): more is refused. Of one that
      streams and is not read, `max_unread_responses` (1,024) are kept before they are merged into one; requests that
      have ended, and that nobody reads, hold `max_unread_bytes` (256 MiB) before the first of them are forgotten.
    - `scheduler_config` and `batching_type` say who is served; STATIC is the policy STATIC_BATCH.
    - `max_beam_width` bounds requests' beams; above 1 there is no drafting.
    - `spec_dec_config` drafts; `guided_decoding_config` lets requests be guided; `logits_post_processor_config` holds
      what they may name; `additional_model_outputs` and `gather_generation_logits` let them ask for these.
    - `iter_stats_max_iterations` and `request_stats_max_iterations` are how many iterations' statistics are kept until
      they are asked for (0: none).
    - Log-probabilities are always normalised: `normalize_log_probs` is True.
    - weft's own: `overlap` launches an iteration before the host has read the one before ("auto": where nothing needs
      the host between); `graphs` is what is captured, and `host_tasks` how that calls the grammar, as in
      `weft.EngineConfig`; `flight_recorder` keeps the last iterations. A request may have `max_words` stop words, and
      as many bad words; each list holds `max_word_bytes` bytes at most (texts in UTF-8, a token id counting for four).

    Raises `InputError` for a value that can't be right, and for fields that weft refuses.
    """

    max_beam_width: Count = 1
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    kv_cache_config: KvCacheConfig = field(default_factory=KvCacheConfig)
    enable_chunked_context: bool = True
    normalize_log_probs: Literal[True] = refused(True)
    iter_stats_max_iterations: NotNegative = 1000
    request_stats_max_iterations: NotNegative = 0
    batching_type: BatchingType = BatchingType.INFLIGHT
    max_batch_size: Count | None = None
    max_num_tokens: Count | None = None
    parallel_config: None = refused()
    peft_cache_config: None = refused()
    logits_post_processor_config: LogitsPostProcessorConfig | None = None
    decoding_config: None = refused()
    use_gpu_direct_storage: Literal[False] = refused(False)
    gpu_weights_percent: Annotated[float, Field(ge=1, le=1)] = refused(1.0)
    max_queue_size: Count | None = None
    extended_runtime_perf_knob_config: None = refused()
    debug_config: None = refused()
    recv_poll_period_ms: Literal[0] = refused(0)
    max_seq_idle_microseconds: Annotated[int, Within(Kind.INTEGER, 1, 2**63 - 1, "at least 1")] = (
        DEFAULT_MAX_SEQ_IDLE_MICROSECONDS
    )
    spec_dec_config: SpeculativeConfig | None = None
    guided_decoding_config: GuidedDecodingConfig | None = None
    additional_model_outputs: Several[AdditionalModelOutput] = ()
    additional_output_names: None = refused()
    cache_transceiver_config: None = refused()
    gather_generation_logits: bool = False
    mm_embedding_offloading: Literal[False] = refused(False)
    enable_trt_overlap: Literal[False] = refused(False)
    fail_fast_on_attention_window_too_large: Literal[False] = refused(False)
    use_variable_beam_width_search: Literal[False] = refused(False)
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
        drafts = self.spec_dec_config is not None and bool(self.spec_dec_config.speculation.drafters)
        if drafts and self.max_beam_width > 1:
            raise InputError(
                f"max_beam_width is {self.max_beam_width}, but beams are not drafted; leave out spec_dec_config, or "
                "the beams"
            )
        given = self.scheduler_config.capacity_scheduler_policy
        if self.batching_type is BatchingType.STATIC and given is CapacitySchedulerPolicy.MAX_UTILIZATION:
            raise InputError(
                "batching_type STATIC is the policy STATIC_BATCH; MAX_UTILIZATION needs INFLIGHT"
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
