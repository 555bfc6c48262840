"""The body of /v1/responses, and how it is read as a chat's."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from weft.server.errors import ApiError, quoted
from weft.server.protocol.base import Body, Few, Object
from weft.server.protocol.chat import ChatBody
from weft.server.protocol.guides import GuideFields
from weft.server.protocol.items import messages_of
from weft.server.protocol.sampling import Metadata

SAME = (
    "model", "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "logit_bias", "stop_token_ids", "bad_words", "stop", "min_tokens", "ignore_eos", "stream",
    "parallel_tool_calls", "priority", "cache_salt", "metadata", "user", "safety_identifier", "prompt_cache_key",
    "structured_outputs", "guide", "chat_template_kwargs", "max_drafts", "timeout_s", "on_length",
)  # fmt: skip


class TextSettings(Body):
    """`text`."""

    format: Object | None = None

    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {
        "verbosity": ("models here have no such setting", ("medium",)),
    }


class ReasoningSettings(Body):
    """`reasoning`: how much of it. There are no summaries."""

    effort: str | None = None

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
    tools: Few[Object] | None = None
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
            data |= {"tools": [_tool(tool) for tool in self.tools], "tool_choice": _choice(self.tool_choice)}
        if self.wants_logprobs:
            data |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        if self.reasoning is not None and self.reasoning.effort is not None:
            data["reasoning_effort"] = self.reasoning.effort
        form = self.text.format if self.text is not None else None
        if form is not None:
            data["response_format"] = _format(form)
        return ChatBody.read(data)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise ApiError(
            f"tools has one of type {quoted(tool.get('type'))}; only functions can be called", param="tools"
        )
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return {"type": "allowed_tools", "allowed_tools": choice}
    return choice


def _format(form: Any) -> dict[str, Any]:
    if not isinstance(form, dict):
        raise ApiError("text.format must be an object", param="text")
    if form.get("type") != "json_schema":
        return form
    inner = {key: value for key, value in form.items() if key != "type"}
    return {"type": "json_schema", "json_schema": inner}
