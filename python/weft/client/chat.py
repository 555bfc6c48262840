"""Renders conversations in OpenAI's form as prompts, with the tokenizer's chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeGuard

from weft.client.model_text import ModelText
from weft.client.options import RequestOptions
from weft.core.prompts import TextTokens
from weft.errors import InputError
from weft.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]
Conversation = Sequence[Message]

FORM = (
    'messages must be a list of {"role": ..., "content": ...}, and not empty; a content is a text or a list of '
    '{"type": "text", "text": ...}, and may be None beside "tool_calls"'
)


class ChatOptions(TypedDict, total=False):
    """Options for the rendering of a conversation.

    - `tools` are shown to the model by the template. Their form is that of `Guide.tools`.
    - `chat_template` replaces the tokenizer's: a Jinja template, or the name of one of the tokenizer's templates.
    - `chat_template_kwargs` are variables for the template, such as `{"enable_thinking": False}`.
    - `add_generation_prompt` (True) ends the prompt with the header of a new answer. `continue_final_message` (False)
      instead makes the answer continue the last message.
    """

    tools: Sequence[Any] | None
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool
    continue_final_message: bool


class ChatRequestOptions(RequestOptions, ChatOptions, total=False):
    """Options of a request with a conversation as its prompt: `RequestOptions` and `ChatOptions`."""


def split_options(options: ChatRequestOptions) -> tuple[ChatOptions, RequestOptions]:
    """Split options into those for rendering the prompt and those for the request."""
    chat = {name: value for name, value in options.items() if name in ChatOptions.__annotations__}
    rest = {name: value for name, value in options.items() if name not in chat}
    return chat, rest  # type: ignore[return-value]  # parts of both


def is_conversation(messages: Conversation | Sequence[Conversation]) -> TypeGuard[Conversation]:
    """Whether `messages` is one conversation (True) or a list of conversations (False). Raises `InputError` for other
    types, and if it is empty."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InputError(FORM)
    return not isinstance(messages[0], list | tuple)


def chat_tokens(
    text: ModelText, messages: Conversation, options: ChatOptions, model: object = "the model"
) -> list[int]:
    """The token ids of a conversation. `model` is the model's name in errors. Raises `InputError` without a tokenizer
    or chat template, and for messages that are not in OpenAI's form or that the template refuses. Raises
    `CapacityError` for a conversation that is certainly too long."""
    tokenizer = text.tokenizer_for("a conversation")
    rendered = chat_text(tokenizer, messages, options, model)
    text.check_text(rendered)
    return TextTokens(tokenizer.encode_chat(rendered), rendered)


def chat_text(
    tokenizer: Tokenizer, messages: Conversation, options: ChatOptions, model: object = "the model"
) -> str:
    """The text of a conversation. Raises `InputError` without a chat template, and for messages that are not in
    OpenAI's form or that the template refuses."""
    from weft.tokenizer.chat_template import plain, takes_parts

    tools, chosen_template = options.get("tools"), options.get("chat_template")
    if not (tokenizer.chat_template or chosen_template):
        raise InputError(f"{model}: the tokenizer has no chat template; use generate with a text")
    template = tokenizer.template(chosen_template, has_tools=tools is not None)
    if not is_conversation(messages):
        raise InputError("this is a list of conversations, where one is expected")
    has_parts = takes_parts(template)
    continues = options.get("continue_final_message", False)
    return tokenizer.apply_chat_template(
        [_message(plain(message), has_parts) for message in messages],
        tools=None if tools is None else [_tool(plain(tool)) for tool in tools],
        chat_template=template,
        add_generation_prompt=options.get("add_generation_prompt", not continues),
        continue_final_message=continues,
        tokenize=False,
        **(options.get("chat_template_kwargs") or {}),
    )


def _message(value: Any, has_parts: bool) -> dict[str, Any]:
    """A message in the form that templates read.

    A list of parts becomes a single text, unless the template reads parts (`has_parts`). The arguments of calls are
    parsed, as in `_call`."""
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise InputError(FORM)
    message: dict[str, Any] = value
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        parts = [_part(part) for part in content]
        message = {**message, "content": parts if has_parts else "\n".join(part["text"] for part in parts)}
    elif not isinstance(content, str) and not (content is None and calls):
        raise InputError(FORM)
    if calls is None:
        return message
    if not isinstance(calls, list):
        raise InputError(f"tool_calls is {calls!r}; it must be a list of calls")
    return {**message, "tool_calls": [_call(call) for call in calls]}


def _part(part: Any) -> dict[str, str]:
    """One part of a message's content. Raises `InputError` for a part that is not text."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise InputError(FORM)
    kind = part.get("type", "text")
    if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
        raise InputError(f"a content has a part of the type {kind!r}; weft reads parts of the type 'text'")
    return {"type": "text", "text": part["text"]}


def _tool(tool: Any) -> Any:
    """A tool in the form that templates read, without `strict` and without members that are None."""
    if not isinstance(tool, dict):
        return tool
    # `strict` controls the guide only: the prompt must not depend on it.
    shown = {key: value for key, value in tool.items() if value is not None and key != "strict"}
    return {**shown, "function": _tool(shown["function"])} if "function" in shown else shown


def _call(call: Any) -> Any:
    """A call in an earlier message. If its arguments are the text of a JSON object, they are parsed into a dict."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InputError(
            f'tool_calls holds {call!r}; a call is {{"function": {{"name": ..., "arguments": ...}}}}'
        )
    if not isinstance(arguments, str):
        return call
    try:
        data = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return call  # an unguided model wrote arguments that are not JSON
    return {**call, "function": {**function, "arguments": data if isinstance(data, dict) else arguments}}
