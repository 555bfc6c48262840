"""Converts a /v1/messages request to a chat: blocks become the content, calls and reasoning of chat messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from weft.server.errors import ApiError, kind_of, quoted, with_names
from weft.server.protocol.generation import ChatBody, TemplateFields
from weft.server.protocol.messages import CountTokensBody, JsonFormat, MessagesBody, Tool, ToolChoice
from weft.server.reading.chat import shared_fields

Block = dict[str, Any]
Message = dict[str, Any]


class MessagesChat(ChatBody):
    """The chat that a request becomes. As in Anthropic's API, `max_tokens` may be more than the model has room for.
    Anthropic's clients send a budget with every request that may think."""

    ends_at_length: ClassVar[bool] = True
    ignores_idle_budget: ClassVar[bool] = True


# -- messages

BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
}
"""The roles, and the types of blocks that their messages may have."""
MEMBERS: dict[str, dict[str, tuple[type, str]]] = {
    "text": {"text": (str, "a text")},
    "tool_use": {"id": (str, "a text"), "name": (str, "a text"), "input": (dict, "an object")},
    "tool_result": {"tool_use_id": (str, "a text")},
    "thinking": {"thinking": (str, "a text")},
    "redacted_thinking": {},
}
"""The members that a block of each type must have. Others, such as `cache_control`, have no effect."""
ERROR = {"type": "text", "text": "Error:"}
"""Begins the result of a tool that failed (`is_error`). Chat templates have no place for this fact."""


def messages_of(body: CountTokensBody) -> list[Message]:
    """Return the chat messages of a conversation. Raises `ApiError`, which names the block."""
    messages: list[Message] = []
    if body.system:
        messages.append({"role": "system", "content": [*_blocks(body.system, BLOCKS["system"], "system")]})
    for place, message in enumerate(body.messages):
        role, path = message.get("role"), f"messages.{place}"
        if not isinstance(role, str) or role not in BLOCKS:
            fault = f"is {quoted(role)}" if "role" in message else "is missing"
            raise ApiError(f"{path}.role {fault}; it must be one of {', '.join(BLOCKS)}", param="messages")
        if "content" not in message:
            raise ApiError(f"{path}.content is missing", param="messages")
        blocks = _blocks(message["content"], BLOCKS[role], f"{path}.content")
        for new in [_answer(blocks)] if role == "assistant" else _turns(role, blocks, f"{path}.content"):
            # Anthropic's API joins consecutive messages of a role, which some chat templates refuse.
            if messages and messages[-1]["role"] == role == new["role"]:
                for member in LISTS & new.keys():
                    messages[-1].setdefault(member, []).extend(new[member])
            else:
                messages.append(new)
    return [_chat_message(message) for message in messages]


def _blocks(content: Any, kinds: Sequence[str], path: str) -> list[Block]:
    """Return the blocks of a content, which may be a string. Raises `ApiError` for blocks of other types than
    `kinds`, and for invalid ones."""
    field = path.partition(".")[0]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ApiError(f"{path} is {kind_of(content)}; it must be a text or a list of blocks", param=field)
    for place, block in enumerate(content):
        fault = _fault(block, kinds)
        if fault is not None:
            raise ApiError(f"{path}.{place}{fault}", param=field)
    return content


def _fault(block: Any, kinds: Sequence[str]) -> str | None:
    """Return the end of an error message that begins with the block's path; None if the block is valid."""
    if not isinstance(block, dict):
        return f" is {kind_of(block)}; it must be an object"
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        return f" is of the type {quoted(kind)}; models here read text: give {' or '.join(kinds)}"
    for name, (wanted, words) in MEMBERS[kind].items():
        if not isinstance(block.get(name), wanted):
            return f".{name} must be {words}" if name in block else f".{name} is missing"
    return None


def _turns(role: str, blocks: list[Block], path: str) -> list[Message]:
    """Return the chat messages of a user's or system's blocks. Each tool result is a message of its own."""
    messages: list[Message] = []
    for place, block in enumerate(blocks):
        if block["type"] == "tool_result":
            result = block.get("content")
            content = _blocks([] if result is None else result, ("text",), f"{path}.{place}.content")
            if block.get("is_error") is True:
                content = [ERROR, *content]
            messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": content})
        elif messages and messages[-1]["role"] == role:
            messages[-1]["content"].append(block)
        else:
            messages.append({"role": role, "content": [block]})
    return messages or [{"role": role, "content": []}]


def _answer(blocks: list[Block]) -> Message:
    """Return the message of the assistant's blocks. Its members `LISTS` are lists."""
    message: Message = {"role": "assistant", "content": [b for b in blocks if b["type"] == "text"]}
    calls = [
        {"id": b["id"], "type": "function", "function": {"name": b["name"], "arguments": b["input"]}}
        for b in blocks
        if b["type"] == "tool_use"
    ]
    thoughts = [b["thinking"] for b in blocks if b["type"] == "thinking" and b["thinking"]]
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = thoughts
    return message


LISTS = {"content", "tool_calls", "reasoning_content"}
"""The members of a message that are lists until it is complete. Joining texts instead would take quadratic time."""


def _chat_message(message: Message) -> Message:
    """Return a chat message. In `message` the members `LISTS` are lists."""
    chat = {**message, "content": _content(message["content"])}
    if "reasoning_content" in message:
        chat["reasoning_content"] = "\n".join(message["reasoning_content"])
    return chat


def _content(blocks: list[Block]) -> str | list[Block]:
    """Return text blocks as the content of a chat message: a string unless there are several."""
    if len(blocks) > 1:
        return [{"type": "text", "text": block["text"]} for block in blocks]
    return "".join(block["text"] for block in blocks)


# -- the chat

CONVERTED = {"messages", "tools", "tool_choice", "response_format", "stop"}
"""Fields of both bodies that `chat_body` does not copy: their forms differ, or they have another name here."""
SHARED_FIELDS = shared_fields(MessagesBody) - CONVERTED
"""The fields with the same name and effect in both bodies."""
NAMES_HERE = {
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""Maps field names of a chat to this route's names, for error messages."""


def _template_data(body: CountTokensBody, messages: list[Message]) -> dict[str, Any]:
    """Return the fields of a chat that its template uses, besides the messages. Raises `ApiError` if the answer would
    continue a call of a tool."""
    variables = dict(body.chat_template_kwargs or {})
    data: dict[str, Any] = {"chat_template_kwargs": variables}
    if body.tools:
        data["tools"] = [_function(tool) for tool in body.tools]
    if body.output_config is not None and body.output_config.effort is not None:
        effort = body.output_config.effort
        data["reasoning_effort"] = "xhigh" if effort == "max" else effort
    if body.thinking is not None:
        if body.thinking.type == "disabled":
            data["reasoning_effort"] = "none"
        else:
            variables.setdefault("enable_thinking", True)
    if "tool_calls" in messages[-1]:
        raise ApiError(
            f"messages.{len(body.messages) - 1} calls a tool; give its tool_result in a message of the user",
            param="messages",
        )
    data["continue_final_message"] = messages[-1]["role"] == "assistant"
    return data


def _function(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "strict": tool.strict}
    present = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": {**present, "parameters": tool.input_schema}}


def chat_body(body: MessagesBody) -> MessagesChat:
    """Build the chat body. Raises `ApiError`, whose message may use a chat's field names. `renamed` fixes them."""
    if body.thread is not None:
        # With this code Anthropic's clients send the whole conversation instead. Their loops of tools need that.
        raise ApiError(
            "thread is not supported: the server keeps no conversations of this route; send all messages",
            param="thread",
            code="thread_unsupported_request",
        )
    data = {name: value for name in SHARED_FIELDS if (value := getattr(body, name)) is not None}
    for name in ("structured_outputs", "guide"):
        if name in data:
            data[name] = data[name].model_dump(exclude_unset=True, by_alias=True)
    messages = messages_of(body)
    data |= {"messages": messages, **_template_data(body, messages)}
    if body.stop_sequences is not None:
        data["stop"] = body.stop_sequences
    if body.tool_choice is not None:
        data["tool_choice"] = _choice(body.tool_choice)
        data["parallel_tool_calls"] = not body.tool_choice.disable_parallel_tool_use
    form = _format(body)
    if form is not None:
        schema = {"schema": form.schema_, "strict": form.strict}
        data["response_format"] = {"type": "json_schema", "json_schema": schema}
    if body.thinking is not None and body.thinking.budget_tokens is not None:
        data["thinking_token_budget"] = body.thinking.budget_tokens
    return MessagesChat.read(data)


def _format(body: MessagesBody) -> JsonFormat | None:
    """Return the format of the answer, under either of its names. Raises `ApiError` if both are given."""
    form = body.output_config.format if body.output_config is not None else None
    if form is not None and body.output_format is not None:
        raise ApiError(
            "output_format is the older name of output_config.format; give one", param="output_format"
        )
    return form or body.output_format


def _choice(choice: ToolChoice) -> Any:
    if choice.type != "tool":
        return "required" if choice.type == "any" else choice.type
    if choice.name is None:
        raise ApiError("tool_choice.name is missing; it is the tool to call", param="tool_choice")
    return {"type": "function", "function": {"name": choice.name}}


def template_fields(body: CountTokensBody, messages: list[Message]) -> TemplateFields:
    """Return the fields that the chat template uses, for the chat messages of the body. Raises `ApiError`."""
    fields = TemplateFields.read(_template_data(body, messages))
    fields.settle_generation_prompt()
    return fields


def renamed(error: ApiError) -> ApiError:
    """Change an error from the chat reader to use this route's field names. Modifies and returns it."""
    if error.param == "stop":  # a word that messages may use otherwise
        error.param = "stop_sequences"
        error.message = error.message.replace("stop", error.param, 1)
    return with_names(error, NAMES_HERE)
