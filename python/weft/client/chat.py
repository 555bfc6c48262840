"""Conversations as prompts, by the tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.client.model_text import ModelText
from weft.errors import InputError

Message = dict[str, Any]


def chat_tokens(
    text: ModelText, messages: Sequence[Message], tools: Sequence[dict[str, Any]] | None, model: object
) -> list[int]:
    """The token ids of a conversation, whose template is told of `tools`. Errors call the model `model`. Raises
    `InputError` without a template, and for what is no conversation."""
    tokenizer = text.tokenizer_for("a conversation")
    if not tokenizer.chat_template:
        raise InputError(f"{model}: the tokenizer has no chat template; use generate with a text")
    if not (messages and _is_conversation(messages)):
        raise InputError(
            'messages must be a list of {"role": ..., "content": ...}, both texts, and not empty'
        )
    rendered = tokenizer.apply_chat_template(
        list(messages),
        tools=None if tools is None else list(tools),
        add_generation_prompt=True,
        tokenize=False,
    )
    text.check_text(rendered)
    return list(tokenizer.encode(rendered, add_special_tokens=False))


def _is_conversation(messages: object) -> bool:
    return isinstance(messages, Sequence) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
        for m in messages
    )
