"""A `Request`: a prompt, and everything about its answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, field
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, PlainValidator, ValidationInfo

from weft.config import MAX_DRAFT_TOKENS
from weft.core import MAX_LOGIT, Kind
from weft.errors import InputError
from weft.executor.types.fields import (
    ByName,
    Count,
    Milliseconds,
    Tensor,
    Text,
    Tokens,
    Within,
    Words,
    count_from,
    read_tensor,
    refused,
    seconds,
    wanted,
)
from weft.executor.types.guided import GuidedDecodingParams
from weft.executor.types.kv import KvCacheRetentionConfig
from weft.executor.types.output import OutputConfig
from weft.executor.types.sampling import SamplingConfig
from weft.executor.types.settings import Settings
from weft.executor.types.speculation import ExternalDraftTokensConfig

LogitsPostProcessor = Callable[..., torch.Tensor | None]
"""`(request_id, logits, tokens, stream, client_id)`: changes the logits in place, or returns others."""


class RequestType(ByName, Enum):
    """What part of a request's work is asked for."""

    REQUEST_TYPE_CONTEXT_AND_GENERATION = 0
    REQUEST_TYPE_CONTEXT_ONLY = 1
    REQUEST_TYPE_GENERATION_ONLY = 2


def _whole(value: RequestType) -> RequestType:
    if value is not RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION:
        raise wanted("asked for whole")
    return value


def _bias(value: Any, info: ValidationInfo) -> torch.Tensor:
    name, value = info.field_name, read_tensor(value, info)
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


EndId = Annotated[int, count_from(-1)]


class Request(Settings):
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

    input_token_ids: Tokens
    max_tokens: Count
    _: KW_ONLY
    streaming: bool = False
    sampling_config: SamplingConfig = field(default_factory=SamplingConfig)
    output_config: OutputConfig = field(default_factory=OutputConfig)
    end_id: EndId | None = None
    pad_id: EndId | None = None
    position_ids: None = refused()
    bad_words: Words | None = None
    stop_words: Words | None = None
    embedding_bias: Annotated[Tensor, PlainValidator(_bias)] | None = None
    external_draft_tokens_config: ExternalDraftTokensConfig | None = None
    prompt_tuning_config: None = refused()
    multimodal_input: None = refused()
    multimodal_embedding: None = refused()
    mrope_config: None = refused()
    lora_config: None = refused()
    lookahead_config: None = refused()
    kv_cache_retention_config: KvCacheRetentionConfig | None = None
    logits_post_processor_name: Text | None = None
    logits_post_processor: LogitsPostProcessor | None = None
    encoder_input_token_ids: None = refused()
    client_id: Annotated[int, Within(Kind.INTEGER, 0, 2**64 - 1, "64 bits, unsigned")] | None = None
    return_all_generated_tokens: bool = False
    priority: Annotated[float, Within(Kind.NUMBER, 0, 1, "0 to 1")] = 0.5
    type: Annotated[RequestType, AfterValidator(_whole)] = refused(RequestType(0))
    context_phase_params: None = refused()
    encoder_input_features: None = refused()
    encoder_output_length: None = refused()
    cross_attention_mask: None = refused()
    num_return_sequences: Literal[1] = refused(1)
    eagle_config: None = refused()
    skip_cross_attn_blocks: None = refused()
    guided_decoding_params: GuidedDecodingParams | None = None
    language_adapter_uid: None = refused()
    allotted_time_ms: Milliseconds | None = None
    num_draft_tokens: (
        Annotated[int, Within(Kind.INTEGER, 0, MAX_DRAFT_TOKENS, f"0 (none) to {MAX_DRAFT_TOKENS}")] | None
    ) = None

    def check(self) -> None:
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
