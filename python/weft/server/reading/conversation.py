"""Conversations of OpenAI's API as prompts, by the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.client.chat import ChatOptions, chat_text
from weft.client.model_text import ModelText
from weft.errors import InputError
from weft.server.errors import ApiError, told
from weft.server.protocol.messages import check_message
from weft.server.protocol.template import TemplateFields

RESERVED = (
    "self",
    "tools",
    "messages",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "chat_template",
)
"""What other fields say, and not `chat_template_kwargs`."""


def prompt_of(text: ModelText, messages: Sequence[Mapping[str, Any]], fields: TemplateFields) -> str:
    """The prompt's text for messages and what else a body tells the template. Raises `ApiError`."""
    options: ChatOptions = {
        "tools": fields.tools or None,
        "chat_template_kwargs": fields.template_arguments,
        "add_generation_prompt": fields.add_generation_prompt,
        "continue_final_message": fields.continue_final_message,
    }
    return _rendered(text, messages, options)


def _rendered(text: ModelText, messages: Sequence[Mapping[str, Any]], options: ChatOptions) -> str:
    """The prompt's text. Raises `ApiError` for messages that can't be read, and for what the template refuses."""
    given = options.get("chat_template_kwargs") or {}
    wrong = next((name for name in given if name in RESERVED), None)
    if wrong is not None:
        raise ApiError(f"chat_template_kwargs has {wrong}, which is a field", param="chat_template_kwargs")
    tokenizer = text.tokenizer_for("a conversation")
    if not tokenizer.chat_template:
        raise ApiError("this model has no chat template; use /v1/completions", code="no_chat_template")
    read = [_message(message, place) for place, message in enumerate(messages)]
    try:
        return chat_text(tokenizer, read, options)
    except InputError as error:
        raise ApiError(told(error), param="messages") from None


def _message(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    """A message whose role templates know."""
    check_message(message, f"messages.{place}")
    return {**message, "role": "system" if message["role"] == "developer" else message["role"]}
