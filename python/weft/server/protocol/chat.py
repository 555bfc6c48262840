"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from weft.server.errors import ApiError
from weft.server.protocol.base import Few, Object
from weft.server.protocol.sampling import SamplingFields


class ChatBody(SamplingFields):
    """OpenAI's chat request, with vLLM's fields."""

    messages: Few[Object] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Few[Object] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking_token_budget: int | None = Field(None, ge=0)
    include_reasoning: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Few[Object] | None = None

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
        if self.max_tokens == 0:
            raise ApiError("max_tokens is 0; a chat's answer has 1 token at least", param="max_tokens")
        if self.continue_final_message and "add_generation_prompt" not in self.model_fields_set:
            self.add_generation_prompt = False
        if self.continue_final_message and self.add_generation_prompt:
            raise ApiError(
                "continue_final_message goes on with the last message; leave out add_generation_prompt",
                param="add_generation_prompt",
            )

    @property
    def most_tokens(self) -> int | None:
        """The longest answer that is asked for."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """How many likeliest tokens are wanted; None: no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None
