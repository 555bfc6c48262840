"""The request bodies of the generating routes: /v1/chat/completions and /v1/completions.

Each shared field is declared once, in the class for its purpose: `GuideFields`, `SharedFields`, `SamplingFields`,
`TemplateFields`. The two bodies combine these classes with fields of their own. `check_together` finds fields that
contradict each other. The numeric sampling fields are those of `SamplingParams`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, create_model
from pydantic_core import PydanticKnownError

from weft.core import SamplingParams, ValueKind
from weft.core.sampling import MAX_LOGIT_BIAS
from weft.core.values import ranges
from weft.server.errors import ApiError, kind_of, quoted
from weft.server.protocol import other_names
from weft.server.protocol.body import MAX_COUNT, Body, Few, NoEffect, Object, Refused

# -- guides

Schema = dict[str, Any] | bool | str


class JsonSchemaFormat(Body):
    """The `response_format.json_schema` object."""

    name: str | None = None
    description: str | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = None

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.JSON_SCHEMA_FORMAT


class ResponseFormat(Body):
    """`response_format`: text, json_object, json_schema or structural_tag (in XGrammar's form, or in vLLM's older
    one)."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    format: dict[str, Any] | None = None
    structures: Few[Object] | None = None
    triggers: Few[str] | None = None

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.RESPONSE_FORMAT


class StructuredOutputs(Body):
    """vLLM's `structured_outputs`: one kind of guide and its options."""

    json_: Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: Few[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.STRUCTURED_OUTPUTS
    REFUSED: ClassVar[Refused] = {
        "whitespace_pattern": (
            "at most one space follows a comma or colon; guide.max_whitespace allows more",
            (),
        ),
    }


def _tidy_or_number(value: Any) -> Any:
    if value is not None and value != "tidy" and type(value) is not int:
        raise ValueError(f"must be 'tidy', a number from 1 on, or null, not {kind_of(value)}")
    return value


class OwnGuide(Body):
    """weft's `guide`: one kind of guide and its options. With `after`, the guide starts only after this text or
    special token."""

    json_object: bool | None = None
    json_schema: Schema | None = None
    regex: str | None = None
    ebnf: str | None = None
    lark: str | None = None
    choice: Few[str] | None = None
    structural_tag: str | dict[str, Any] | None = None
    wasm: str | None = Field(None, max_length=256)
    arg: Any = None
    handle: str | None = None
    strict: bool = True
    any_order: bool = False
    open_objects: bool = False
    max_whitespace: Annotated[
        Annotated[int, Field(ge=1, le=MAX_COUNT)] | Literal["tidy"] | None, BeforeValidator(_tidy_or_number)
    ] = "tidy"
    after: str | int | None = None
    max_free_tokens: int | None = Field(None, ge=0, le=MAX_COUNT)

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.GUIDE


class GuideFields(Body):
    """The fields that constrain an answer. Every generating route has them."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Few[str] | None = None
    guided_grammar: str | None = None
    guide: OwnGuide | None = None

    REFUSED: ClassVar[Refused] = {
        "guided_decoding_backend": (
            "the server chooses the library that enforces more of a guide",
            ("auto",),
        ),
        "guided_whitespace_pattern": ("give guide.max_whitespace", ()),
    }


# -- sampling

LOWEST_PRIORITY = 30
ID = re.compile(r"0|-?[1-9][0-9]{0,18}")


def _bounded_biases(value: Any) -> Any:
    if isinstance(value, dict) and len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"names {len(value)} tokens; it may name {MAX_LOGIT_BIAS}")
    return value


def _bounded_metadata(value: Any) -> Any:
    """Enforce OpenAI's limits for metadata."""
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
"""A token id as a JSON member name. Only the canonical spelling is accepted, so that two names can't mean the same
token."""
Metadata = Annotated[dict[str, Any], BeforeValidator(_bounded_metadata)]


class StreamOptions(Body):
    """`stream_options`: whether to send usage in a last chunk, and in every chunk."""

    include_usage: bool = False
    continuous_usage_stats: bool = False

    REFUSED: ClassVar[Refused] = {
        "include_obfuscation": ("chunks are as long as their text", (False,)),
    }


BY_ROUTE = {"max_tokens", "n", "logprobs"}
"""Parameters that have another name, limit or meaning in some routes. Each body declares its own fields for them."""
PARAMETERS: dict[str, Any] = {
    name: (int | None if range.kind is ValueKind.INTEGER else float | None, None)
    for name, range in ranges(SamplingParams).items()
    if name not in BY_ROUTE
}
"""The types and defaults of the fields that stand for the other numeric fields of `SamplingParams`."""

if TYPE_CHECKING:
    ParameterFields = GuideFields  # mypy does not see the fields of a model that is made at run time
else:
    ParameterFields = create_model("ParameterFields", __base__=GuideFields, **PARAMETERS)


class SharedFields(ParameterFields):
    """The fields of every generating route, /v1/responses included. A numeric parameter that is None takes its value
    from the model's generation_config.json, or else the API's default."""

    model: str | None = None
    top_k: int | None = Field(None, ge=-1)  # -1: all, as in vLLM
    logit_bias: Annotated[dict[TokenId, float], BeforeValidator(_bounded_biases)] | None = None
    bad_words: Few[str | Few[int]] | None = None
    stop: str | Few[str] | None = None
    stop_token_ids: Few[int] | None = None
    on_length: str = "cut"
    ignore_eos: bool = False
    stream: bool = False
    priority: int = Field(0, ge=-LOWEST_PRIORITY, le=LOWEST_PRIORITY)
    cache_salt: str | None = None
    timeout_s: float | None = None
    max_drafts: int | None = None
    # Without effect (`NO_EFFECT`): they label requests, or concern OpenAI's caches and prices.
    user: str | None = None
    metadata: Metadata | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: Object | None = None
    service_tier: str | None = None  # OpenAI and Anthropic have different tiers

    NO_EFFECT: ClassVar[NoEffect] = {
        "user": (),
        "safety_identifier": (),
        "prompt_cache_key": (),
        "prompt_cache_retention": ("in_memory", "in-memory"),
        "prompt_cache_options": ({},),
        "service_tier": ("auto", "default"),
    }


class SamplingFields(SharedFields):
    """The sampling fields of chats and completions, from OpenAI, vLLM and weft."""

    max_tokens: int | None = Field(None, ge=0)
    n: int | None = Field(None, ge=1, le=128)
    allowed_token_ids: Few[int] | None = Field(None, min_length=1)
    include_stop_str_in_output: bool = False
    best_of: int | None = None
    use_beam_search: bool = False
    length_penalty: float | None = None
    early_stopping: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=20)
    truncate_prompt_tokens: int | None = Field(None, ge=1)
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    request_id: str | None = Field(None, max_length=256)
    store: bool = False  # only /v1/responses stores answers

    ends_at_length: ClassVar[bool] = False
    """Whether an answer of `max_tokens` that the model has no room for ends at the model's length. It is an error
    otherwise."""

    NO_EFFECT: ClassVar[NoEffect] = {**SharedFields.NO_EFFECT, "metadata": ({},), "store": (False,)}
    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.SAMPLING
    REFUSED: ClassVar[Refused] = {
        **GuideFields.REFUSED,
        "skip_special_tokens": ("text has no special tokens; ask for return_token_ids", (True,)),
        "spaces_between_special_tokens": ("text has no special tokens", (True,)),
        "logits_processors": ("a server runs no code of its clients; use a guide or logit_bias", ([],)),
        "vllm_xargs": ("weft has none of vLLM's extra arguments", ({},)),
        "kv_transfer_params": ("weft moves no keys and values between servers", ()),
        "lora": ("adapters are not supported yet", ()),
        "lora_path": ("adapters are not supported yet", ()),
        "suffix": ("text is only continued at its end", ("",)),
    }

    @property
    def num_answers(self) -> int:
        """Answers per prompt."""
        return self.n or 1

    @property
    def engine_priority(self) -> float:
        """The engine's priority, from 0 to 1, where higher runs first. Clients send vLLM's `priority`, where lower
        runs first."""
        return 1 / (1 + math.exp(self.priority))

    @property
    def answer_tokens(self) -> int | None:
        """Requested length of the answer in tokens; None if the body gives none."""
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens to report per token; None for no log-probabilities."""
        return None

    @property
    def wants_prompt_logits(self) -> bool:
        """Whether the answer needs the logits of the prompt."""
        return self.prompt_logprobs is not None

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

    def sampling(self, defaults: SamplingParams, max_tokens: int) -> SamplingParams:
        """Build the sampling parameters. Numeric fields that the body leaves out come from `defaults`, except
        `logprobs` and `n`. Raises `InputError`."""
        given = {name: value for name in PARAMETERS if (value := getattr(self, name)) is not None}
        if self.top_k == -1:
            given["top_k"] = 0
        return replace(
            defaults,
            **given,
            max_tokens=max_tokens,
            logit_bias=self.logit_bias,
            bad_words=self.bad_words or (),
            stop=() if self.stop is None else self.stop,
            stop_token_ids=self.stop_token_ids or (),
            logprobs=self.num_logprobs,
            n=None if self.n == 1 else self.n,
            on_length=self.on_length,  # type: ignore[arg-type]  # SamplingParams checks it
        )


# -- chat template

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Verbosity = Literal["low", "medium", "high"]


class TemplateFields(Body):
    """The fields that a chat template uses, besides the messages."""

    tools: Few[Object] | None = None
    reasoning_effort: Effort | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Few[Object] | None = None

    @property
    def template_arguments(self) -> dict[str, Any]:
        """The variables for the template. Explicit `chat_template_kwargs` take precedence over the other fields."""
        arguments = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None:
            arguments.setdefault("reasoning_effort", self.reasoning_effort)
            if self.reasoning_effort == "none":
                arguments.setdefault("enable_thinking", False)
        if self.documents is not None:
            arguments.setdefault("documents", self.documents)
        return arguments

    def settle_generation_prompt(self) -> None:
        """Turn `add_generation_prompt` off if the prompt continues the last message. Raises `ApiError` if the body
        explicitly asks for both."""
        if self.continue_final_message and "add_generation_prompt" not in self.model_fields_set:
            self.add_generation_prompt = False
        if self.continue_final_message and self.add_generation_prompt:
            raise ApiError(
                "continue_final_message goes on with the last message; leave out add_generation_prompt",
                param="add_generation_prompt",
            )


# -- chats


def _known_prediction(value: Any) -> Any:
    if isinstance(value, dict):
        unknown = next((name for name in value if name not in ("type", "content")), None)
        if unknown is not None:
            raise ValueError(f"has {quoted(unknown)}, which is not known; it has type and content")
    return value


class ChatBody(SamplingFields, TemplateFields):
    """OpenAI's chat completion request, with vLLM's fields."""

    messages: Few[Object] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prediction: Annotated[dict[str, Any] | None, BeforeValidator(_known_prediction)] = None
    thinking_token_budget: int | None = Field(None, ge=0, le=MAX_COUNT)
    include_reasoning: bool = True
    verbosity: Verbosity | None = None

    ignores_idle_budget: ClassVar[bool] = False
    """Whether a `thinking_token_budget` that no guide can enforce has no effect. It is an error otherwise."""

    NO_EFFECT: ClassVar[NoEffect] = {**SamplingFields.NO_EFFECT, "verbosity": ("medium",)}
    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.CHAT
    REFUSED: ClassVar[Refused] = {
        **SamplingFields.REFUSED,
        "echo": ("a conversation is not repeated; use /v1/completions", (False,)),
        "audio": ("models here write text", ()),
        "modalities": ("models here write text", (["text"],)),
        "functions": ("give tools", ([],)),
        "function_call": ("give tool_choice", ()),
        "web_search_options": ("there is no search; give a tool of yours", ()),
        "chat_template": ("the model's own template is used", ()),
        "add_special_tokens": ("the template writes the special tokens", (False,)),
        "mm_processor_kwargs": ("models here read text", ({},)),
    }

    def check_together(self) -> None:
        """Raise `ApiError` for fields that contradict each other."""
        super().check_together()
        if self.top_logprobs and not self.logprobs:
            raise ApiError("top_logprobs needs logprobs to be true", param="top_logprobs")
        if self.max_completion_tokens not in (None, self.max_tokens) and self.max_tokens is not None:
            raise ApiError(
                f"max_tokens is {self.max_tokens} and max_completion_tokens {self.max_completion_tokens}; give one of "
                "them",
                param="max_completion_tokens",
            )
        if self.max_tokens == 0:
            raise ApiError("max_tokens is 0; a chat's answer has 1 token at least", param="max_tokens")
        self.settle_generation_prompt()

    @property
    def answer_tokens(self) -> int | None:
        """Requested length of the answer in tokens; None if the body gives none."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens to report per token; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


# -- completions

MAX_PROMPTS = 1024
DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for `max_tokens` of a completion."""


def _prompt(value: Any) -> Any:
    """Check for a string, token ids, or a list of either. pydantic does not check this, because it would build an
    error for each of millions of entries."""
    if isinstance(value, str) or is_ids(value):
        return value
    if isinstance(value, list) and all(
        isinstance(prompt, str) or (prompt and is_ids(prompt)) for prompt in value[: MAX_PROMPTS + 1]
    ):
        return value
    raise ValueError("must be a text, a list of token ids, or a list of either")


def is_ids(value: Any) -> bool:
    """Whether a value is a non-empty list of token ids."""
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


class CompletionBody(SamplingFields):
    """OpenAI's completion request with vLLM's fields. `prompt` is one prompt or a list, as text or token ids.

    weft's `token_details` adds the answer's tokens to each choice, in the format of a chat's `logprobs.content`."""

    prompt: Annotated[Any, BeforeValidator(_prompt)]
    logprobs: int | None = Field(None, ge=0, le=20)
    echo: bool = False
    token_details: bool = False
    add_special_tokens: bool = True

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.COMPLETIONS

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts as a list, which is never empty. Raises `ApiError` for no prompt or too many."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise ApiError("prompt is an empty list; give one prompt at least", param="prompt")
        if len(prompt) > MAX_PROMPTS and not isinstance(prompt[0], int):
            raise ApiError(f"there are {len(prompt)} prompts; {MAX_PROMPTS} at most", param="prompt")
        return [prompt] if isinstance(prompt[0], int) else list(prompt)

    @property
    def answer_tokens(self) -> int:
        """Requested length of the answer in tokens."""
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens to report per token; None for no log-probabilities."""
        return self.logprobs

    @property
    def is_prompt_only(self) -> bool:
        """Whether the client wants only the prompt back: `echo` with `max_tokens` 0."""
        return self.max_tokens == 0

    @property
    def wants_prompt_logits(self) -> bool:
        """Whether the answer needs the logits of the prompt."""
        return super().wants_prompt_logits or (self.echo and self.logprobs is not None)

    def check_together(self) -> None:
        """Raise `ApiError` for fields that contradict each other."""
        super().check_together()
        if self.max_tokens == 0 and not self.echo:
            raise ApiError("max_tokens is 0; without echo an answer has 1 token at least", param="max_tokens")
        if self.token_details and self.logprobs is None:
            raise ApiError("token_details needs logprobs, such as 0", param="token_details")
        if self.echo and self.stream and self.logprobs is not None:
            raise ApiError(
                "log-probabilities of the prompt are not streamed; leave out stream", param="stream"
            )
