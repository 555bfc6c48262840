"""The settings of an executor: `ExecutorConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from weft.config import EngineConfig, Graphs
from weft.core import Kind
from weft.errors import InputError
from weft.executor.types.checked import Checked
from weft.executor.types.fields import (
    count,
    count_parser,
    flag,
    instance,
    instances,
    number,
    number_of_bytes,
    parsed,
    refused,
    required,
    settings,
    text,
)
from weft.executor.types.guided import GuidedDecodingConfig
from weft.executor.types.kv import KvCacheConfig
from weft.executor.types.output import AdditionalModelOutput
from weft.executor.types.processors import LogitsPostProcessorConfig
from weft.executor.types.scheduler import BatchingType, CapacitySchedulerPolicy, SchedulerConfig
from weft.executor.types.speculation import SpeculativeConfig

Overlap = Literal["auto"] | bool

DEFAULT_MAX_SEQ_IDLE_MICROSECONDS = 180_000_000
DEFAULT_MAX_QUEUE_SIZE = 16_384

_ONE_RANK = "an executor runs on one device, in this process; leave it out"


def _one_of(*values: str | bool) -> Any:
    """A parser that takes one of `values`."""

    def parse(name: str, value: Any) -> Any:
        if not any(type(value) is type(valid) and value == valid for valid in values):
            raise InputError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, values))}")
        return value

    return parse


@dataclass(eq=False)
class FlightRecorderConfig(Checked):
    """Keeps the last `iterations` iterations in memory, and writes them into `directory` when a request fails. The
    directory is made where there is none; None: only on demand.
    """

    iterations: int = field(metadata=required(count_parser()))
    directory: str | None = text()


@dataclass(eq=False)
class ExecutorConfig(Checked):
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
      the host between); `graphs` is what is captured, as in `weft.EngineConfig`; `flight_recorder` keeps the last
      iterations. A request may have `max_words` stop words, and as many bad words; each list holds `max_word_bytes`
      bytes at most (texts in UTF-8, a token id counting for four).

    Raises `InputError` for a value that can't be right, and for fields that weft refuses.
    """

    max_beam_width: int = count(1)
    scheduler_config: SchedulerConfig = settings(SchedulerConfig)
    kv_cache_config: KvCacheConfig = settings(KvCacheConfig)
    enable_chunked_context: bool = flag(True)
    normalize_log_probs: bool = refused(
        "log-probabilities are those of the whole vocabulary; for what the model gives, ask for generation logits",
        default=True,
    )
    iter_stats_max_iterations: int = count(1000, lowest=0)
    request_stats_max_iterations: int = count(0, lowest=0)
    batching_type: BatchingType = instance(BatchingType, default=BatchingType.INFLIGHT)
    max_batch_size: int | None = count(None)
    max_num_tokens: int | None = count(None)
    parallel_config: None = refused(_ONE_RANK)
    peft_cache_config: None = refused("adapters are not loaded at run time; merge them into the checkpoint")
    logits_post_processor_config: LogitsPostProcessorConfig | None = instance(
        LogitsPostProcessorConfig, default=None
    )
    decoding_config: None = refused(
        "requests decide how they decode (SamplingConfig); give spec_dec_config for drafts, instead of Medusa, "
        "lookahead or Eagle choices"
    )
    use_gpu_direct_storage: bool = refused("weights are read by the host", default=False)
    gpu_weights_percent: float = refused("all weights stay on the device", default=1.0)
    max_queue_size: int | None = count(None)
    extended_runtime_perf_knob_config: None = refused(
        "what is captured is said by graphs; the rest is not a choice"
    )
    debug_config: None = refused(
        "tensors come out by additional_model_outputs; flight_recorder keeps iterations"
    )
    recv_poll_period_ms: int = refused("requests are not polled for; they wake the executor", default=0)
    max_seq_idle_microseconds: int = number(
        Kind.INTEGER, 1, 2**63 - 1, "at least 1", default=DEFAULT_MAX_SEQ_IDLE_MICROSECONDS
    )
    spec_dec_config: SpeculativeConfig | None = instance(SpeculativeConfig, default=None)
    guided_decoding_config: GuidedDecodingConfig | None = instance(GuidedDecodingConfig, default=None)
    additional_model_outputs: Sequence[AdditionalModelOutput] = instances(AdditionalModelOutput)
    additional_output_names: None = refused("it has a newer name: additional_model_outputs")
    cache_transceiver_config: None = refused("prompt and answer are computed by the same executor")
    gather_generation_logits: bool = flag(False)
    mm_embedding_offloading: bool = refused("models read text only", default=False)
    enable_trt_overlap: bool = refused("give overlap=True", default=False)
    fail_fast_on_attention_window_too_large: bool = refused(
        "attention reaches over the whole text", default=False
    )
    use_variable_beam_width_search: bool = refused(
        "the beam width stays the same throughout an answer", default=False
    )
    overlap: Overlap = parsed(_one_of("auto", True, False), default="auto")
    graphs: Graphs = parsed(_one_of("one", "split", "none"), default="one")
    max_seq_len: int | None = count(None, lowest=2)
    max_return_sequences: int = count(1024)
    max_pending_bytes: int = number_of_bytes(1 << 30)
    max_unread_responses: int = count(1024)
    max_unread_bytes: int = number_of_bytes(256 << 20)
    flight_recorder: FlightRecorderConfig | None = instance(FlightRecorderConfig, default=None)
    max_words: int = count(EngineConfig.max_words)
    max_word_bytes: int = count(EngineConfig.max_word_bytes)

    def check(self) -> None:
        super().check()
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
