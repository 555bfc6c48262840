"""The executor's `Request`: a prompt, with all parameters of its answer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, field
from enum import Enum
from typing import Annotated, Any, ClassVar

import torch
from pydantic import PlainValidator, ValidationInfo

from weft.config import MAX_DRAFT_TOKENS
from weft.core import ValueKind
from weft.errors import InputError
from weft.executor.types.adapters import LoraConfig
from weft.executor.types.embeddings import MropeConfig, MultimodalInput, PromptTuningConfig
from weft.executor.types.fields import (
    ByName,
    Count,
    Milliseconds,
    NotNegative,
    Several,
    Tensor,
    Text,
    Tokens,
    Within,
    Words,
    read_tensor,
    seconds,
)
from weft.executor.types.guided import GuidedDecodingParams
from weft.executor.types.kv import KvCacheRetentionConfig
from weft.executor.types.output import OutputConfig
from weft.executor.types.parallel import ContextPhaseParams
from weft.executor.types.sampling import SamplingConfig
from weft.executor.types.settings import Settings
from weft.executor.types.speculation import EagleConfig, ExternalDraftTokensConfig, LookaheadDecodingConfig

LogitsPostProcessor = Callable[..., torch.Tensor | None]
"""A function `(request_id, logits, tokens, stream, client_id)` that changes the logits in place or returns new ones."""


class RequestType(ByName, Enum):
    """The phases of a request that the executor runs: prefill (context), generation, or both."""

    REQUEST_TYPE_CONTEXT_AND_GENERATION = 0
    REQUEST_TYPE_CONTEXT_ONLY = 1
    REQUEST_TYPE_GENERATION_ONLY = 2


def _bias(value: Any, info: ValidationInfo) -> torch.Tensor:
    name, value = info.field_name, read_tensor(value, info)
    if not isinstance(value, torch.Tensor) or value.dim() != 1 or not value.is_floating_point():
        raise InputError(
            f"{name} must be a tensor of floating-point numbers, one for each token: [vocab_size]"
        )
    if value.layout is not torch.strided or value.is_meta:
        raise InputError(f"{name} must be a dense tensor with memory; to_dense() makes one of a sparse one")
    bias = value.detach().to("cpu", torch.float32, copy=True)
    if not bool((bias.isfinite() | (bias == -math.inf)).all()):
        raise InputError(
            f"{name} holds numbers that are not finite; it may hold those that are, and -inf to forbid"
        )
    return bias


TokenId = Annotated[int, Within(ValueKind.INTEGER, -(2**31), 2**31 - 1, "32 bits, signed")]
"""A token id; a negative number means no token."""
Number64 = Annotated[int, Within(ValueKind.INTEGER, 0, 2**64 - 1, "64 bits, unsigned")]


class Request(Settings):
    """A prompt with all parameters of its answer. All fields but the first two are keyword-only.

    - `input_token_ids` is the prompt: a list or array of at least one token id. The ids of a list of more than 65,536
      are checked only when the request is enqueued.
    - The answer ends after `max_tokens` tokens, at `end_id`, or at one of `stop_words` (lists of token ids, or texts).
      It includes the stop word, but not the end token. An `end_id` of None or below 0 means no end token; a guided
      answer still ends at the guide's end. `bad_words`, in the same form, never occur in the answer. `pad_id` has no
      effect: outputs are never padded.
    - `streaming` gives one response per iteration with the new tokens. With `return_all_generated_tokens`, or with
      beams, each response has the whole answer so far.
    - `embedding_bias`, float [vocab_size], is added to the logits: finite numbers, or -inf, which forbids a token.
    - `external_draft_tokens_config` gives drafts for the answer. The answer then ends after the accepted drafts and one
      more token. `num_draft_tokens`, weft's extension, limits the drafts of an iteration (None: the executor's limit;
      0: none).
    - `logits_post_processor_name` names a processor of `LogitsPostProcessorConfig`
      (`Request.BATCHED_POST_PROCESSOR_NAME`: the batched one). `logits_post_processor` is a function for this request.
    - `kv_cache_retention_config` sets the retention of its blocks. Only requests with the same `cache_salt_id` reuse
      them.
    - `priority`, 0 to 1: requests of a higher priority are scheduled first. After `allotted_time_ms` (a timedelta, or
      milliseconds) the request ends as `TIMED_OUT`, with its partial answer. Its responses carry `client_id`.

    Raises `InputError` for a value that no executor accepts. Errors that depend on the executor (a token beyond the
    vocabulary, an unknown name), and fields that weft refuses, give an error response.
    """

    BATCHED_POST_PROCESSOR_NAME: ClassVar[str] = "batched"

    input_token_ids: Tokens
    max_tokens: Count
    _: KW_ONLY
    streaming: bool = False
    sampling_config: SamplingConfig = field(default_factory=SamplingConfig)
    output_config: OutputConfig = field(default_factory=OutputConfig)
    end_id: TokenId | None = None
    pad_id: TokenId | None = None
    position_ids: Several[NotNegative] | None = None
    bad_words: Words | None = None
    stop_words: Words | None = None
    embedding_bias: Annotated[Tensor, PlainValidator(_bias)] | None = None
    external_draft_tokens_config: ExternalDraftTokensConfig | None = None
    prompt_tuning_config: PromptTuningConfig | None = None
    multimodal_input: MultimodalInput | None = None
    multimodal_embedding: Tensor | None = None
    mrope_config: MropeConfig | None = None
    lora_config: LoraConfig | None = None
    lookahead_config: LookaheadDecodingConfig | None = None
    kv_cache_retention_config: KvCacheRetentionConfig | None = None
    logits_post_processor_name: Text | None = None
    logits_post_processor: LogitsPostProcessor | None = None
    encoder_input_token_ids: Tokens | None = None
    client_id: Number64 | None = None
    return_all_generated_tokens: bool = False
    priority: Annotated[float, Within(ValueKind.NUMBER, 0, 1, "0 to 1")] = 0.5
    type: RequestType = RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION
    context_phase_params: ContextPhaseParams | None = None
    encoder_input_features: Tensor | None = None
    encoder_output_length: NotNegative | None = None
    cross_attention_mask: Tensor | None = None
    num_return_sequences: Count = 1
    eagle_config: EagleConfig | None = None
    skip_cross_attn_blocks: Tensor | None = None
    guided_decoding_params: GuidedDecodingParams | None = None
    language_adapter_uid: NotNegative | None = None
    allotted_time_ms: Milliseconds | None = None
    cache_salt_id: Number64 | None = None
    disagg_request_id: Number64 | None = None
    num_draft_tokens: (
        Annotated[int, Within(ValueKind.INTEGER, 0, MAX_DRAFT_TOKENS, f"0 (none) to {MAX_DRAFT_TOKENS}")]
        | None
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
    def sampling(self) -> SamplingConfig:
        """`sampling_config`. If it sets no `num_return_sequences`, it has the request's."""
        if self.num_return_sequences == 1 or self.sampling_config.num_return_sequences is not None:
            return self.sampling_config
        asked = copy.copy(self.sampling_config)
        asked.num_return_sequences = self.num_return_sequences
        return asked

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__("type" if name == "request_type" else name, value)

    @property
    def request_type(self) -> RequestType:
        """The request's `type`, under TensorRT-LLM's attribute name."""
        return self.type

    @property
    def allotted_s(self) -> float | None:
        """`allotted_time_ms` in seconds."""
        return seconds(self.allotted_time_ms)
