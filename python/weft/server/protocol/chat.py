"""The body of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from weft.server.errors import ApiError, quoted
from weft.server.protocol import other_names
from weft.server.protocol.body import MOST_COUNTED, Few, Object
from weft.server.protocol.generation import SamplingFields
from weft.server.protocol.template import TemplateFields


def _prediction(value: Any) -> Any:
    if isinstance(value, dict):
        unknown = next((name for name in value if name not in ("type", "content")), None)
        if unknown is not None:
            raise ValueError(f"has {quoted(unknown)}, which is not known; it has type and content")
    return value


class ChatBody(SamplingFields, TemplateFields):
    """OpenAI's chat request, with vLLM's fields."""

    messages: Few[Object] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prediction: Annotated[dict[str, Any] | None, BeforeValidator(_prediction)] = None
    thinking_token_budget: int | None = Field(None, ge=0, le=MOST_COUNTED)
    include_reasoning: bool = True

    OTHER_NAMES: ClassVar[Mapping[str, str]] = other_names.CHAT
    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {
        **SamplingFields.REFUSED,
        "echo": ("a conversation is not repeated; use /v1/completions", (False,)),
        "audio": ("models here write text", ()),
        "modalities": ("models here write text", (["text"],)),
        "functions": ("give tools", ([],)),
        "function_call": ("give tool_choice", ()),
        "web_search_options": ("there is no search; give a tool of yours", ()),
        "verbosity": ("models here have no such setting", ("medium",)),
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
        self.check_goes_on()

    @property
    def most_tokens(self) -> int | None:
        """The longest answer that is asked for."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many likeliest tokens are wanted; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None
