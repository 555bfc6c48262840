"""The request bodies of /v1/messages and /v1/messages/count_tokens. `reading/messages.py` converts them to a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from weft.server.errors import quoted
from weft.server.protocol import other_names
from weft.server.protocol.body import MAX_COUNT, Body, Few, NoEffect, Object, Refused
from weft.server.protocol.generation import Schema, SharedFields

TOOL_FORM = 'a tool here is {"name": ..., "description": ..., "input_schema": ...}'


def _custom_tool(tool: Any) -> Any:
    """Refuse the tools whose schema is Anthropic's, and those in OpenAI's form."""
    if not isinstance(tool, dict):
        return tool
    kind = tool.get("type")
    if kind == "function":
        raise ValueError(f"is in the form of /v1/chat/completions; {TOOL_FORM}")
    if kind not in (None, "custom"):
        raise ValueError(f"is of type {quoted(kind)}, which only Anthropic's models know; {TOOL_FORM}")
    return tool


class Tool(Body):
    """A function that the model may call. Only the first four fields have an effect."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None
    type: str | None = None
    cache_control: Object | None = None
    allowed_callers: Few[str] | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None
    input_examples: Few[Object] | None = None


class ToolChoice(Body):
    """`tool_choice`: whether the model may, must or must not call a tool, or which tool it must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingSettings(Body):
    """The `thinking` object. With `display` "omitted", blocks of thinking are empty."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(None, ge=1, le=MAX_COUNT)
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(Body):
    """A JSON schema for the answer. `strict` is weft's: false enforces the schema as far as possible."""

    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")
    strict: bool = True


class OutputConfig(Body):
    """The `output_config` object."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None
    task_budget: Object | None = None

    NO_EFFECT: ClassVar[NoEffect] = {"task_budget": ()}


class CountTokensBody(Body):
    """The body of /v1/messages/count_tokens: the fields that shape the prompt."""

    model: str | None = None
    messages: Few[Object] = Field(min_length=1)
    system: str | Few[Object] | None = None
    tools: Few[Annotated[Tool, BeforeValidator(_custom_tool)]] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingSettings | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None  # the older name of output_config.format
    chat_template_kwargs: dict[str, Any] | None = None
    # Without effect (`NO_EFFECT`): they concern Anthropic's caches and accounts. weft caches every prefix.
    cache_control: Object | None = None
    context_management: Object | None = None
    diagnostics: Object | None = None
    inference_geo: str | None = None
    service_tier: str | None = None
    speed: str | None = None

    NO_EFFECT: ClassVar[NoEffect] = {
        "cache_control": (),
        "context_management": (),
        "diagnostics": (),
        "inference_geo": (),
        "service_tier": ("auto", "standard_only"),
        "speed": ("standard",),
    }
    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.COUNT_TOKENS
    REFUSED: ClassVar[Refused] = {
        "container": ("there are no containers; a tool of yours can run code", ()),
        "mcp_servers": ("the server calls no other server; give tools", ([],)),
    }


class MessagesBody(SharedFields, CountTokensBody):
    """Anthropic's request to create a message, with fields of weft and vLLM."""

    max_tokens: int = Field(ge=1)
    stop_sequences: Few[str] | None = None
    metadata: Object | None = None  # without effect, as below
    thread: Object | None = None

    NO_EFFECT: ClassVar[NoEffect] = {**SharedFields.NO_EFFECT, **CountTokensBody.NO_EFFECT, "metadata": ({},)}
    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.MESSAGES
    REFUSED: ClassVar[Refused] = {
        **SharedFields.REFUSED,
        **CountTokensBody.REFUSED,
        "response_format": ("give output_config.format", ()),
        "stop": ("give stop_sequences", ()),
    }
