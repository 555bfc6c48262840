"""Conversations as prompts, by the tokenizer's chat template. Messages are OpenAI's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeGuard

from weft.client.model_text import ModelText
from weft.client.options import RequestOptions
from weft.errors import InputError
from weft.tokenizer.tokenizer import Tokenizer

Message = Mapping[str, Any]
Conversation = Sequence[Message]

FORM = (
    'messages must be a list of {"role": ..., "content": ...}, and not empty; a content is a text or a list of '
    '{"type": "text", "text": ...}, and may be None beside "tool_calls"'
)


class ChatOptions(TypedDict, total=False):
    """How a conversation becomes a prompt.

    - `tools` are what the template tells the model of, as in `Guide.tools`.
    - `chat_template` stands in for the tokenizer's: a template in Jinja, or the name of one of several.
    - `chat_template_kwargs` are variables of the template, such as `{"enable_thinking": False}`.
    - `add_generation_prompt` (True) ends with what opens an answer; `continue_final_message` (False), in its place,
      has the answer go on with the last message.
    """

    tools: Sequence[Any] | None
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool
    continue_final_message: bool


class ChatRequestOptions(RequestOptions, ChatOptions, total=False):
    """Options of a request whose prompt is a conversation: `RequestOptions` and `ChatOptions`."""


def split_options(options: ChatRequestOptions) -> tuple[ChatOptions, RequestOptions]:
    """What is about the prompt, and what is about the answer."""
    chat = {name: value for name, value in options.items() if name in ChatOptions.__annotations__}
    rest = {name: value for name, value in options.items() if name not in chat}
    return chat, rest  # type: ignore[return-value]  # parts of both


def is_conversation(messages: Conversation | Sequence[Conversation]) -> TypeGuard[Conversation]:
    """Whether this is one conversation, rather than several."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InputError(FORM)
    return not isinstance(messages[0], list | tuple)


def chat_tokens(
    text: ModelText, messages: Conversation, options: ChatOptions, model: object = "the model"
) -> list[int]:
    """The token ids of a conversation. Errors call the model `model`. Raises `InputError` without a template, and for
    what is no conversation."""
    tokenizer = text.tokenizer_for("a conversation")
    rendered = chat_text(tokenizer, messages, options, model)
    text.check_text(rendered)
    return tokenizer.encode(rendered, add_special_tokens=False)


def chat_text(
    tokenizer: Tokenizer, messages: Conversation, options: ChatOptions, model: object = "the model"
) -> str:
    """A conversation as text. Raises `InputError` as `chat_tokens` does."""
    from weft.tokenizer.chat_template import plain, takes_parts

    tools, given = options.get("tools"), options.get("chat_template")
    if not (tokenizer.chat_template or given):
        raise InputError(f"{model}: the tokenizer has no chat template; use generate with a text")
    template = tokenizer.template(given, has_tools=tools is not None)
    if not is_conversation(messages):
        raise InputError("this is a list of conversations, where one is expected")
    has_parts = takes_parts(template)
    goes_on = options.get("continue_final_message", False)
    return tokenizer.apply_chat_template(
        [_message(plain(message), has_parts) for message in messages],
        tools=None if tools is None else [_tool(plain(tool)) for tool in tools],
        chat_template=template,
        add_generation_prompt=options.get("add_generation_prompt", not goes_on),
        continue_final_message=goes_on,
        tokenize=False,
        **(options.get("chat_template_kwargs") or {}),
    )


def _message(given: Any, has_parts: bool) -> dict[str, Any]:
    """A message as templates read it: a text in the place of parts, unless they read parts, and calls' arguments as
    data rather than as JSON."""
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise InputError(FORM)
    message: dict[str, Any] = given
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
    """A part of a content. Raises `InputError` for what is no text."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise InputError(FORM)
    kind = part.get("type", "text")
    if kind not in ("text", "input_text", "output_text") or not isinstance(part.get("text"), str):
        raise InputError(f"a content has a part of the type {kind!r}; weft reads parts of the type 'text'")
    return {"type": "text", "text": part["text"]}


def _tool(tool: Any) -> Any:
    """A tool as templates read it: without members that are None, and without `strict`, which is for the guide alone.
    So the prompt of a function does not depend on how its arguments are enforced."""
    if not isinstance(tool, dict):
        return tool
    shown = {key: value for key, value in tool.items() if value is not None and key != "strict"}
    return {**shown, "function": _tool(shown["function"])} if "function" in shown else shown


def _call(call: Any) -> Any:
    """A call of an earlier turn, its arguments as data: OpenAI has them as the text of a JSON object."""
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
        return call  # what a model wrote that was not guided
    return {**call, "function": {**function, "arguments": data if isinstance(data, dict) else arguments}}
