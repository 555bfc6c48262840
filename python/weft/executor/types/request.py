"""A `Request`: a prompt, and everything about its answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar

import torch

from weft.config import MAX_DRAFT_TOKENS
from weft.core import MAX_LOGIT, Kind
from weft.errors import InputError
from weft.executor.types.checked import Checked
from weft.executor.types.fields import (
    count,
    count_parser,
    duration_ms,
    flag,
    function,
    instance,
    number,
    parse_tokens,
    parsed,
    refused,
    required,
    seconds,
    settings,
    text,
    words,
)
from weft.executor.types.guided import GuidedDecodingParams
from weft.executor.types.kv import KvCacheRetentionConfig
from weft.executor.types.output import OutputConfig
from weft.executor.types.sampling import SamplingConfig
from weft.executor.types.speculation import ExternalDraftTokensConfig

_NO_ADAPTERS = "adapters are not loaded at run time; merge them into the checkpoint"
_NO_IMAGES = "models read text only; give its tokens as input_token_ids"
_NO_ENCODER = "models have no encoder; give the whole text as input_token_ids"
_NO_DISAGGREGATION = "prompt and answer are computed by the same executor; leave it out"
_DRAFTER = "the executor decides how it drafts: ExecutorConfig(spec_dec_config=SpeculativeConfig(...))"

LogitsPostProcessor = Callable[..., torch.Tensor | None]
"""`(request_id, logits, tokens, stream, client_id)`: changes the logits in place, or returns others."""


class RequestType(Enum):
    """What part of a request's work is asked for."""

    REQUEST_TYPE_CONTEXT_AND_GENERATION = 0
    REQUEST_TYPE_CONTEXT_ONLY = 1
    REQUEST_TYPE_GENERATION_ONLY = 2


def _parse_bias(name: str, value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.dim() != 1 or not value.is_floating_point():
        raise InputError(
            f"{name} must be a tensor of floating-point numbers, one for each token: [vocab_size]"
        )
    if value.layout is not torch.strided or value.is_meta:
        raise InputError(f"{name} must be a dense tensor with memory; to_dense() makes one of a sparse one")
    bias = value.detach().to("cpu", torch.float32, copy=True)
    if not bool(((bias == -math.inf) | (bias.abs() <= MAX_LOGIT)).all()):
        raise InputError(
            f"{name} holds numbers outside -10000 to 10000; it may hold those, and -inf to forbid"
        )
    return bias


@dataclass(eq=False)
class Request(Checked):
    """A prompt and everything about its answer. All but the first two are given by name.

    - `input_token_ids` is the prompt, at least one token (one of more than 65,536 is read when it is enqueued);
      `max_tokens` ends the answer, and so does `end_id` (None: the model's own end tokens; -1: none does), and
      `stop_words`: lists of token ids, or texts. `bad_words`, of the same form, are never drawn. `pad_id` is taken for
      compatibility: outputs are never padded, so nothing holds it.
    - `streaming` gives a response for each iteration, with what it added; with `return_all_generated_tokens`, or beams,
      with the whole answer so far.
    - `embedding_bias`, float [vocab_size], is added to the logits (-10,000 to 10,000; -inf forbids).
    - `num_draft_tokens` is the most tokens drafted for this request in an iteration (None: as the executor has it; 0:
      none). `external_draft_tokens_config` is what its answer is expected to be.
    - `logits_post_processor_name` names one of `LogitsPostProcessorConfig`'s
      (`Request.BATCHED_POST_PROCESSOR_NAME`: its batched one); `logits_post_processor` is a
      function of this request's own.
    - `kv_cache_retention_config` says how long its blocks stay in the cache.
    - `priority`, 0 to 1, goes first where it is higher. After `allotted_time_ms` (or a timedelta) the request ends as
      `TIMED_OUT`, with what there is. `client_id` comes back with its responses.

    Fields that weft refuses take their default only. Raises `InputError` for a value that can't be right; what depends
    on the executor (a token beyond the vocabulary, a name it does not know) is said in an error response.
    """

    BATCHED_POST_PROCESSOR_NAME: ClassVar[str] = "batched"

    input_token_ids: Sequence[int] = field(metadata=required(parse_tokens))
    max_tokens: int = field(metadata=required(count_parser()))
    _: KW_ONLY
    streaming: bool = flag(False)
    sampling_config: SamplingConfig = settings(SamplingConfig)
    output_config: OutputConfig = settings(OutputConfig)
    end_id: int | None = count(None, lowest=-1)
    pad_id: int | None = count(None, lowest=-1)
    position_ids: Sequence[int] | None = refused("positions are counted from 0; leave it out")
    bad_words: Sequence[str | Sequence[int]] | None = words()
    stop_words: Sequence[str | Sequence[int]] | None = words()
    embedding_bias: torch.Tensor | None = parsed(_parse_bias, default=None, optional=True)
    external_draft_tokens_config: ExternalDraftTokensConfig | None = instance(
        ExternalDraftTokensConfig, default=None
    )
    prompt_tuning_config: None = refused("prompts are tokens, not embeddings; give input_token_ids alone")
    multimodal_input: None = refused(_NO_IMAGES)
    multimodal_embedding: None = refused(_NO_IMAGES)
    mrope_config: None = refused(_NO_IMAGES)
    lora_config: None = refused(_NO_ADAPTERS)
    lookahead_config: None = refused(_DRAFTER)
    kv_cache_retention_config: KvCacheRetentionConfig | None = instance(KvCacheRetentionConfig, default=None)
    logits_post_processor_name: str | None = text()
    logits_post_processor: LogitsPostProcessor | None = function()
    encoder_input_token_ids: None = refused(_NO_ENCODER)
    client_id: int | None = number(Kind.INTEGER, 0, 2**64 - 1, "64 bits, unsigned", default=None)
    return_all_generated_tokens: bool = flag(False)
    priority: float = number(Kind.NUMBER, 0, 1, "0 to 1", default=0.5)
    type: RequestType = refused(_NO_DISAGGREGATION, default=RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION)
    context_phase_params: None = refused(_NO_DISAGGREGATION)
    encoder_input_features: None = refused(_NO_ENCODER)
    encoder_output_length: int | None = refused(_NO_ENCODER)
    cross_attention_mask: None = refused(_NO_ENCODER)
    num_return_sequences: int = refused("give SamplingConfig(num_return_sequences=...)", default=1)
    eagle_config: None = refused(_DRAFTER)
    skip_cross_attn_blocks: None = refused(_NO_ENCODER)
    guided_decoding_params: GuidedDecodingParams | None = instance(GuidedDecodingParams, default=None)
    language_adapter_uid: int | None = refused(_NO_ADAPTERS)
    allotted_time_ms: float | timedelta | None = duration_ms()
    num_draft_tokens: int | None = number(
        Kind.INTEGER, 0, MAX_DRAFT_TOKENS, f"0 (none) to {MAX_DRAFT_TOKENS}", default=None
    )

    def check(self) -> None:
        super().check()
        min_tokens = self.sampling_config.min_tokens or 0
        if min_tokens > self.max_tokens:
            raise InputError(f"min_tokens is {min_tokens}; it must be 0 to max_tokens, {self.max_tokens}")
        if self.logits_post_processor is not None and self.logits_post_processor_name is not None:
            raise InputError("give logits_post_processor or logits_post_processor_name, not both")
        if self.external_draft_tokens_config is None and not self.num_draft_tokens:
            return
        if self.num_draft_tokens == 0:
            raise InputError(
                "external_draft_tokens_config gives drafts, but num_draft_tokens is 0; leave one out"
            )
        if self.sampling_config.beam_width > 1:
            raise InputError(
                "beams are not drafted; leave out num_draft_tokens and external drafts, or the beams"
            )

    @property
    def request_type(self) -> RequestType:
        """`type`, by its name in TensorRT-LLM's properties."""
        return self.type

    @property
    def allotted_s(self) -> float | None:
        """`allotted_time_ms` in seconds."""
        return seconds(self.allotted_time_ms)
