"""Items of /v1/responses: those of a request, as they are kept and listed, and as a chat's messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from weft.server.errors import ApiError, quoted
from weft.server.ids import new_hex
from weft.server.protocol.messages import TEXTS, check_content, check_message

Item = dict[str, Any]
PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""What the ids of each type begin with."""
MAX_ID = 128


def new_item_id(kind: str) -> str:
    """An id for an item of a type."""
    return f"{PREFIXES[kind]}_{new_hex()}"


def input_items(given: str | Iterable[Item], before: Sequence[Item]) -> list[Item]:
    """The items of a request's `input` as OpenAI lists them: with type, id and status. Ids that are there and are not
    those of `before` stay. Raises `ApiError`."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    taken = {item["id"] for item in before}
    found = []
    for place, item in enumerate(given):
        kind = item.get("type", "message")
        if not isinstance(kind, str) or kind not in PREFIXES:
            raise ApiError(
                f"input.{place} is of type {quoted(kind)}; weft takes {', '.join(PREFIXES)}", param="input"
            )
        own = item.get("id")
        if not (isinstance(own, str) and 0 < len(own) <= MAX_ID) or own in taken:
            own = new_item_id(kind)
        taken.add(own)
        found.append({"id": own, "type": kind, "status": "completed", **_read(kind, item, f"input.{place}")})
    return found


def _read(kind: str, item: Item, place: str) -> Item:
    if kind == "message":
        check_message(item, place)
        return {"role": item["role"], "content": _parts(item)}
    if kind == "reasoning":
        return {"summary": item.get("summary") or [], "content": item.get("content")}
    names = ("call_id", "name") if kind == "function_call" else ("call_id",)
    found: Item = {name: item.get(name) for name in names}
    wrong = next((name for name, value in found.items() if not isinstance(value, str) or not value), None)
    if wrong is not None:
        raise ApiError(f"{place}.{wrong} is missing; a {kind} has {' and '.join(names)}", param="input")
    if kind == "function_call_output":
        check_content(item, place, "output")
        return {**found, "output": item.get("output")}
    arguments = item.get("arguments", "{}")
    return {**found, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}


def _parts(item: Item) -> Any:
    """A content as a list of parts, named as those of its role are."""
    content = item.get("content")
    if isinstance(content, str):
        content = [{"text": content}]
    if not isinstance(content, list):
        return content  # the chat refuses it
    is_answer = item.get("role") == "assistant"
    return [_part(part, is_answer) for part in content]


def _part(part: Any, is_answer: bool) -> Any:
    if not isinstance(part, dict) or part.get("type", "text") not in TEXTS:
        return part
    own = {"type": "output_text", "annotations": [], "logprobs": []} if is_answer else {"type": "input_text"}
    return {**part, **own}


def messages_of(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Items as a chat's messages: calls in a row are one message's, and reasoning is none."""
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
    """The text of a content that is one part; others as they are."""
    is_one = isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict)
    if is_one and content[0].get("type") in ("input_text", "output_text"):
        return content[0].get("text")
    return content


def page(items: Sequence[Item], limit: int, order: str, after: str | None) -> dict[str, Any]:
    """`limit` items in the order "asc" or "desc", from the one that follows `after` on, as OpenAI lists them. Raises
    `ApiError` where `after` is none of them."""
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
