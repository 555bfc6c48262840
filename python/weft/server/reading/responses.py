"""Converts a /v1/responses request to a chat: input items become messages, and fields become the chat's fields.

The items are also stored with the response. /v1/responses/{id}/input_items lists them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from weft.server.errors import ApiError, quoted, with_names
from weft.server.ids import ITEM_PREFIXES, new_item_id
from weft.server.protocol.generation import ChatBody
from weft.server.protocol.responses import ENCRYPTED, LOGPROBS, ResponsesBody
from weft.server.reading.chat import TEXT_PARTS, check_content, check_message, shared_fields

Item = dict[str, Any]
MAX_ID = 128


def input_items(content: str | Iterable[Item], before: Sequence[Item]) -> list[Item]:
    """Return the items of `input` in OpenAI's form, with type, id and status. A client's id is kept unless it is
    invalid or already taken. `before` is the conversation that the request continues. Raises `ApiError`."""
    if isinstance(content, str):
        content = [{"role": "user", "content": content}]
    taken = {item["id"] for item in before}
    items = []
    for place, item in enumerate(content):
        kind = item.get("type", "message")
        if not isinstance(kind, str) or kind not in ITEM_PREFIXES:
            raise ApiError(
                f"input.{place} is of type {quoted(kind)}; weft takes {', '.join(ITEM_PREFIXES)}",
                param="input",
            )
        item_id = item.get("id")
        if not (isinstance(item_id, str) and 0 < len(item_id) <= MAX_ID) or item_id in taken:
            item_id = new_item_id(kind)
        taken.add(item_id)
        members = _members(kind, item, f"input.{place}")
        items.append({"id": item_id, "type": kind, "status": "completed", **members})
    return items


def _members(kind: str, item: Item, place: str) -> Item:
    if kind == "message":
        check_message(item, place)
        return {"role": item["role"], "content": _parts(item)}
    if kind == "reasoning":
        return {"summary": item.get("summary") or [], "content": item.get("content")}
    names = ("call_id", "name") if kind == "function_call" else ("call_id",)
    members: Item = {name: item.get(name) for name in names}
    wrong = next((name for name, value in members.items() if not isinstance(value, str) or not value), None)
    if wrong is not None:
        raise ApiError(f"{place}.{wrong} is missing; a {kind} has {' and '.join(names)}", param="input")
    if kind == "function_call_output":
        check_content(item, place, "output")
        return {**members, "output": item.get("output")}
    arguments = item.get("arguments", "{}")
    return {**members, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}


def _parts(item: Item) -> Any:
    """Return a message's content as a list of parts. The role decides their type: input_text or output_text."""
    content = item.get("content")
    if isinstance(content, str):
        content = [{"text": content}]
    if not isinstance(content, list):
        return content  # null, which only an assistant's message may have
    is_answer = item.get("role") == "assistant"
    return [_part(part, is_answer) for part in content]


def _part(part: Any, is_answer: bool) -> Any:
    if not isinstance(part, dict) or part.get("type", "text") not in TEXT_PARTS:
        return part
    if is_answer:
        return {**part, "type": "output_text", "annotations": [], "logprobs": []}
    return {**part, "type": "input_text"}


def messages_of(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Convert items to chat messages. Consecutive calls share a message. Reasoning is dropped."""
    messages: list[dict[str, Any]] = []
    for item in items:
        kind = item["type"]
        if kind == "message":
            messages.append({"role": item["role"], "content": _text(item["content"])})
        elif kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            if not (messages and messages[-1].get("tool_calls")):
                messages.append({"role": "assistant", "content": None, "tool_calls": []})
            messages[-1]["tool_calls"].append(
                {"id": item["call_id"], "type": "function", "function": function}
            )
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    return messages


def _text(content: Any) -> Any:
    """Return the text of a content with a single text part. Any other content is returned unchanged."""
    is_single = isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict)
    if is_single and content[0].get("type") in ("input_text", "output_text"):
        return content[0].get("text")
    return content


def page(items: Sequence[Item], limit: int, order: str, after: str | None) -> dict[str, Any]:
    """Return one page of items in OpenAI's list form. It has at most `limit` items in the order "asc" or "desc",
    starting after the item with the id `after`. Raises `ApiError` if there is no such item."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if after is not None:
        start = next((place for place, item in enumerate(ordered, 1) if item["id"] == after), 0)
        if not start:
            raise ApiError(f"there is no item {quoted(after)} in this response's input", param="after")
    shown = ordered[start : start + limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + limit < len(ordered),
    }


# -- the chat

CONVERTED = {"tools", "tool_choice", "top_logprobs", "stream_options", "response_format"}
"""Fields of both bodies that `chat_body` does not copy. Tools have another form, and so has the choice among them.
`top_logprobs` implies `logprobs`, which a chat must set. `stream_options` has no options here. `response_format` is
refused: it is `text.format`."""
SHARED_FIELDS = shared_fields(ResponsesBody) - CONVERTED
"""The fields with the same name and effect in both bodies."""
NAMES_HERE = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}
"""Maps field names of a chat to this route's names, for error messages."""


def chat_body(body: ResponsesBody, items: list[Item]) -> ChatBody:
    """Build the chat body: the instructions as a system message, then `items`. Raises `ApiError`, whose message may
    use a chat's field names. `renamed` fixes them."""
    unknown = set(body.include or []) - {LOGPROBS, ENCRYPTED}
    if unknown:
        raise ApiError(f"include has {quoted(min(unknown))}, which weft does not have", param="include")
    data = {name: value for name in SHARED_FIELDS if (value := getattr(body, name)) is not None}
    for name in ("structured_outputs", "guide"):
        if name in data:
            data[name] = data[name].model_dump(exclude_unset=True, by_alias=True)
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    data |= {"messages": [*system, *messages_of(items)], "max_completion_tokens": body.max_output_tokens}
    if body.tools:
        data["tools"] = [_as_chat(tool) for tool in body.tools]
    if body.tool_choice is not None:
        data["tool_choice"] = _choice(body.tool_choice)
    if body.wants_logprobs:
        data |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    if body.reasoning is not None and body.reasoning.effort is not None:
        data["reasoning_effort"] = body.reasoning.effort
    form = body.text.format if body.text is not None else None
    if form is not None:
        data["response_format"] = _format(form)
    return ChatBody.read(data)


def renamed(error: ApiError) -> ApiError:
    """Change an error from the chat reader to use this route's field names. Modifies and returns it."""
    return with_names(error, NAMES_HERE)


def _as_chat(tool: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return {"type": "allowed_tools", "allowed_tools": choice}
    return choice


def _format(form: Any) -> dict[str, Any]:
    if not isinstance(form, dict):
        raise ApiError("text.format must be an object", param="text")
    if form.get("type") != "json_schema":
        misplaced = next((name for name in ("schema", "json_schema", "strict") if name in form), None)
        if misplaced is not None:
            raise ApiError(
                f"text.format has {misplaced}, which goes with the type 'json_schema'", param="text.format"
            )
        return form
    inner = {key: value for key, value in form.items() if key != "type"}
    return {"type": "json_schema", "json_schema": inner}
