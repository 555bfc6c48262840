"""The body of /v1/responses, and how it is read as a chat's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from weft.server.errors import ApiError, kind_of, quoted
from weft.server.protocol import other_names
from weft.server.protocol.body import Body, Few, Object
from weft.server.protocol.chat import ChatBody
from weft.server.protocol.guides import GuideFields
from weft.server.reading.responses import messages_of
from weft.server.protocol.generation import Metadata
from weft.server.protocol.template import Effort

SAME = (
    "model", "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "logit_bias", "stop_token_ids", "bad_words", "stop", "min_tokens", "ignore_eos", "stream",
    "parallel_tool_calls", "priority", "cache_salt", "metadata", "user", "safety_identifier", "prompt_cache_key",
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guide",
    "chat_template_kwargs", "max_drafts", "timeout_s", "on_length",
)  # fmt: skip
OWN_NAMES = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}
"""What a chat's fields are called here."""
CHAT_NAME = re.compile(rf"(?<![\w.])(?:{'|'.join(map(re.escape, OWN_NAMES))})(?!\w)")


TOOL_FORM = 'a tool here is {"type": "function", "name": ..., "parameters": ...}'


def _flat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool in this route's form, which may also come in a chat's."""
    if tool.get("type") != "function":
        raise ValueError(f"is of type {quoted(tool.get('type'))}; only functions can be called")
    function = tool.get("function")
    if function is not None:
        given = (name for name, value in tool.items() if value is not None)
        beside = next((name for name in given if name not in ("type", "function")), None)
        if beside is not None:
            raise ValueError(f"has {quoted(beside)} beside 'function'; {TOOL_FORM}")
        if not isinstance(function, dict):
            raise ValueError(f"has a function that is {kind_of(function)}; {TOOL_FORM}")
        tool = {"type": "function", **function}
    if not isinstance(tool.get("name"), str):
        raise ValueError(f"has no name that is a text; {TOOL_FORM}")
    return tool


class TextSettings(Body):
    """`text`."""

    format: Object | None = None

    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {
        "verbosity": ("models here have no such setting", ("medium",)),
    }


class ReasoningSettings(Body):
    """`reasoning`: how much of it. There are no summaries."""

    effort: Effort | None = None

    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {
        "summary": ("reasoning is given as it is", ("auto",)),
        "generate_summary": ("reasoning is given as it is", ("auto",)),
    }


class StreamSettings(Body):
    """`stream_options`."""

    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {
        "include_obfuscation": ("events are as long as their text", (False,)),
    }


class ResponsesBody(GuideFields):
    """OpenAI's request of a response, with weft's and vLLM's fields."""

    input: str | Few[Object]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: TextSettings | None = None
    tools: Few[Annotated[Object, AfterValidator(_flat_tool)]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningSettings | None = None
    include: Few[str] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    store: bool = True
    stream: bool = False
    stream_options: StreamSettings | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Object | None = None
    stop: str | Few[str] | None = None
    stop_token_ids: Few[int] | None = None
    bad_words: Few[str | Few[int]] | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    priority: int = 0
    cache_salt: str | None = None
    max_drafts: int | None = None
    timeout_s: float | None = None
    on_length: str = "cut"
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.RESPONSES
    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {
        **GuideFields.REFUSED,
        "background": ("answers are waited for", (False,)),
        "conversation": ("give previous_response_id", ()),
        "prompt": ("there are no stored prompts; give input", ()),
        "truncation": ("a prompt that is too long is refused", ("disabled",)),
        "service_tier": ("there is one tier", ("auto", "default")),
        "max_tool_calls": ("tools are yours to call", ()),
        "response_format": ("give text.format", ()),
    }

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities of the text are wanted."""
        return "message.output_text.logprobs" in (self.include or []) or bool(self.top_logprobs)

    def chat(self, items: list[dict[str, Any]]) -> ChatBody:
        """The same as a chat of these items, after this request's own instructions. Raises `ApiError`."""
        unknown = set(self.include or []) - {"message.output_text.logprobs", "reasoning.encrypted_content"}
        if unknown:
            raise ApiError(f"include has {quoted(min(unknown))}, which weft does not have", param="include")
        data = {name: value for name in SAME if (value := getattr(self, name)) is not None}
        for name in ("structured_outputs", "guide"):
            if name in data:
                data[name] = data[name].model_dump(exclude_unset=True, by_alias=True)
        told = [{"role": "system", "content": self.instructions}] if self.instructions else []
        data |= {"messages": [*told, *messages_of(items)], "max_completion_tokens": self.max_output_tokens}
        if self.tools:
            data["tools"] = [_as_chat(tool) for tool in self.tools]
        if self.tool_choice is not None:
            data["tool_choice"] = _choice(self.tool_choice)
        if self.wants_logprobs:
            data |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        if self.reasoning is not None and self.reasoning.effort is not None:
            data["reasoning_effort"] = self.reasoning.effort
        form = self.text.format if self.text is not None else None
        if form is not None:
            data["response_format"] = _format(form)
        return ChatBody.read(data)


def in_own_names(error: ApiError) -> ApiError:
    """The same error of a chat, as who asked for a response reads it."""
    error.message = _in_own_names(error.message)
    if error.param is not None:
        error.param = _in_own_names(error.param)
    return error


def _in_own_names(text: str) -> str:
    return CHAT_NAME.sub(lambda found: OWN_NAMES[found[0]], text)


def _as_chat(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return {"type": "allowed_tools", "allowed_tools": choice}
    return choice


def _format(form: Any) -> dict[str, Any]:
    if not isinstance(form, dict):
        raise ApiError("text.format must be an object", param="text")
    if form.get("type") != "json_schema":
        alien = next((name for name in ("schema", "json_schema", "strict") if name in form), None)
        if alien is not None:
            raise ApiError(
                f"text.format has {alien}, which goes with the type 'json_schema'", param="text.format"
            )
        return form
    inner = {key: value for key, value in form.items() if key != "type"}
    return {"type": "json_schema", "json_schema": inner}
