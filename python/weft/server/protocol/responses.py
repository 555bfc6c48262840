"""The request body of /v1/responses. `reading/responses.py` converts it to a chat body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from weft.server.errors import kind_of, quoted
from weft.server.protocol import other_names
from weft.server.protocol.body import Body, Few, NoEffect, Object, Refused
from weft.server.protocol.generation import Effort, SharedFields, Verbosity

LOGPROBS, ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
"""The values of `include`."""
TOOL_FORM = 'a tool here is {"type": "function", "name": ..., "parameters": ...}'


def _flat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool in this route's flat form. Clients may also send the nested form of chats."""
    if tool.get("type") != "function":
        raise ValueError(f"is of type {quoted(tool.get('type'))}; only functions can be called")
    function = tool.get("function")
    if function is not None:
        present = (name for name, value in tool.items() if value is not None)
        extra = next((name for name in present if name not in ("type", "function")), None)
        if extra is not None:
            raise ValueError(f"has {quoted(extra)} beside 'function'; {TOOL_FORM}")
        if not isinstance(function, dict):
            raise ValueError(f"has a function that is {kind_of(function)}; {TOOL_FORM}")
        tool = {"type": "function", **function}
    if not isinstance(tool.get("name"), str):
        raise ValueError(f"has no name that is a text; {TOOL_FORM}")
    return tool


class TextSettings(Body):
    """The `text` object."""

    format: Object | None = None
    verbosity: Verbosity | None = None

    NO_EFFECT: ClassVar[NoEffect] = {"verbosity": ("medium",)}


class ReasoningSettings(Body):
    """The `reasoning` object: the effort. Reasoning summaries are not supported."""

    effort: Effort | None = None

    REFUSED: ClassVar[Refused] = {
        "summary": ("reasoning is given as it is", ("auto",)),
        "generate_summary": ("reasoning is given as it is", ("auto",)),
    }


class StreamSettings(Body):
    """The `stream_options` object, which has no options here."""

    REFUSED: ClassVar[Refused] = {
        "include_obfuscation": ("events are as long as their text", (False,)),
    }


class ResponsesBody(SharedFields):
    """OpenAI's request to create a response, with fields of weft and vLLM."""

    input: str | Few[Object]
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
    max_tool_calls: int | None = Field(None, ge=1)  # limits OpenAI's own tools
    store: bool = True
    stream_options: StreamSettings | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    NO_EFFECT: ClassVar[NoEffect] = {**SharedFields.NO_EFFECT, "max_tool_calls": ()}
    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.RESPONSES
    REFUSED: ClassVar[Refused] = {
        **SharedFields.REFUSED,
        "background": ("answers are waited for", (False,)),
        "conversation": ("give previous_response_id", ()),
        "prompt": ("there are no stored prompts; give input", ()),
        "truncation": ("a prompt that is too long is refused", ("disabled",)),
        "response_format": ("give text.format", ()),
    }

    @property
    def ignored(self) -> list[str]:
        """The fields that are set and have no effect. They include a request for encrypted reasoning, since the
        reasoning is in the answer as it is."""
        names = super().ignored
        return sorted([*names, f"include.{ENCRYPTED}"]) if ENCRYPTED in (self.include or []) else names

    @property
    def wants_logprobs(self) -> bool:
        """Whether the body requests log-probabilities of the output text."""
        return LOGPROBS in (self.include or []) or bool(self.top_logprobs)
