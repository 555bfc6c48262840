"""Fields that say how an answer is sampled, for every route that generates."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError

from weft.core import SamplingParams
from weft.core.sampling import MAX_LOGIT_BIAS
from weft.server.errors import ApiError
from weft.server.protocol import other_names
from weft.server.protocol.body import Body, Few
from weft.server.protocol.guides import GuideFields

LOWEST_PRIORITY = 30
ID = re.compile(r"0|-?[1-9][0-9]{0,18}")


def _few_biases(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"names {len(value)} tokens; it may name {MAX_LOGIT_BIAS}")
    return value


def _few_notes(value: Any) -> Any:
    """OpenAI's bounds on metadata."""
    if isinstance(value, dict) and (
        len(value) > 16 or any(len(str(name)) > 64 or len(str(text)) > 512 for name, text in value.items())
    ):
        raise ValueError("has at most 16 entries, of names of 64 characters and texts of 512")
    return value


def _id(name: Any) -> int:
    if isinstance(name, str) and ID.fullmatch(name):
        return int(name)
    if type(name) is int:
        return name
    raise PydanticKnownError("int_parsing")


TokenId = Annotated[int, BeforeValidator(_id)]
"""As the name of an entry, which JSON has as a text: as Python writes it, so that no two names are one token."""
Metadata = Annotated[dict[str, Any], BeforeValidator(_few_notes)]


class StreamOptions(Body):
    """`stream_options`: a chunk with the usage at the end, and with each."""

    include_usage: bool = False
    continuous_usage_stats: bool = False

    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {
        "include_obfuscation": ("chunks are as long as their text", (False,)),
    }


class SamplingFields(GuideFields):
    """OpenAI's, vLLM's and weft's own. None is the default of the model's generation_config.json, or the API's."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=0)
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    logit_bias: Annotated[dict[TokenId, float], BeforeValidator(_few_biases)] | None = None
    allowed_token_ids: Few[int] | None = Field(None, min_length=1)
    bad_words: Few[str | Few[int]] | None = None
    seed: int | None = None
    stop: str | Few[str] | None = None
    stop_token_ids: Few[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    n: int | None = Field(None, ge=1, le=128)
    best_of: int | None = None
    use_beam_search: bool = False
    length_penalty: float | None = None
    early_stopping: bool | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=20)
    truncate_prompt_tokens: int | None = Field(None, ge=1)
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    priority: int = Field(0, ge=-LOWEST_PRIORITY, le=LOWEST_PRIORITY)
    cache_salt: str | None = None
    request_id: str | None = Field(None, max_length=256)
    on_length: str = "cut"
    timeout_s: float | None = None
    max_drafts: int | None = None
    # Accepted, and of no effect here: who asks, and what caches are called.
    user: str | None = None
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.SAMPLING
    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {
        **GuideFields.REFUSED,
        "skip_special_tokens": ("text has no special tokens; ask for return_token_ids", (True,)),
        "spaces_between_special_tokens": ("text has no special tokens", (True,)),
        "logits_processors": ("a server runs no code of its clients; use a guide or logit_bias", ([],)),
        "vllm_xargs": ("weft has none of vLLM's extra arguments", ({},)),
        "kv_transfer_params": ("weft moves no keys and values between servers", ()),
        "lora": ("adapters are not supported yet", ()),
        "lora_path": ("adapters are not supported yet", ()),
        "service_tier": ("there is one tier", ("auto", "default")),
        "store": ("answers of this route are not kept; /v1/responses keeps them", (False,)),
        "suffix": ("text is only continued at its end", ("",)),
    }

    @property
    def num_answers(self) -> int:
        """How many answers a prompt gets."""
        return self.n or 1

    @property
    def engine_priority(self) -> float:
        """The engine's priority, 0 to 1: vLLM's goes first where it is lower."""
        return 1 / (1 + math.exp(self.priority))

    def check_together(self) -> None:
        """Raise `ApiError` for fields that contradict each other."""
        if self.best_of not in (None, self.num_answers):
            raise ApiError(
                f"best_of is {self.best_of}; it must equal n, which is {self.num_answers}", param="best_of"
            )
        if self.use_beam_search and self.stream:
            raise ApiError("beams are not streamed, since they change; leave out stream", param="stream")
        beam_only = {"length_penalty": (None, 1.0), "early_stopping": (None, False)}
        for name, inert in beam_only.items():
            if not self.use_beam_search and getattr(self, name) not in inert:
                raise ApiError(f"{name} is for beams; give use_beam_search, too", param=name)
        if self.stream_options is not None and not self.stream:
            raise ApiError(
                "stream_options is for answers that are streamed; give stream, too", param="stream_options"
            )
        if self.stream and self.prompt_logprobs is not None:
            raise ApiError("prompt_logprobs are not streamed; leave out stream", param="prompt_logprobs")

    def sampling(self, defaults: SamplingParams, max_tokens: int, logprobs: int | None) -> SamplingParams:
        """The parameters of a request that may have `max_tokens`; what the body leaves out is in `defaults`. Raises
        `InputError`."""

        def chosen(name: str) -> Any:
            given = getattr(self, name)
            return getattr(defaults, name) if given is None else given

        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=chosen("temperature"),
            top_p=chosen("top_p"),
            top_k=max(chosen("top_k"), 0),  # vLLM's -1 is all, too
            min_p=chosen("min_p"),
            frequency_penalty=chosen("frequency_penalty"),
            presence_penalty=chosen("presence_penalty"),
            repetition_penalty=chosen("repetition_penalty"),
            no_repeat_ngram_size=chosen("no_repeat_ngram_size"),
            logit_bias=self.logit_bias,
            bad_words=self.bad_words or (),
            stop=() if self.stop is None else self.stop,
            stop_token_ids=self.stop_token_ids or (),
            seed=self.seed,
            logprobs=logprobs,
            n=None if self.n == 1 else self.n,
            on_length=self.on_length,  # type: ignore[arg-type]  # SamplingParams says what it may be
        )
