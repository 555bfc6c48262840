"""What is looked at in every message of a conversation, before a template reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.server.errors import ApiError, kind_of, quoted

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
TEXTS = ("text", "input_text", "output_text")
"""Types of parts that hold text."""


def check_message(message: Mapping[str, Any], place: str) -> None:
    """Raise `ApiError` for a role that is unknown, and for a content that can't be read. `place` is the message's in
    the body."""
    role = message.get("role")
    if role not in ROLES:
        said = f"is {quoted(role)}" if "role" in message else "is missing"
        raise ApiError(
            f"{place}.role {said}; it must be one of {', '.join(ROLES)}", param=place.partition(".")[0]
        )
    is_of_answer = role == "assistant" and ("content" in message or bool(message.get("tool_calls")))
    if message.get("content") is not None or not is_of_answer:  # an answer may be all reasoning or calls
        check_content(message, place)


def check_content(given: Mapping[str, Any], place: str, name: str = "content") -> None:
    """Raise `ApiError` unless what is `given` has a text, or a list of parts of text, by that name."""
    field, content = place.partition(".")[0], given.get(name)
    if not isinstance(content, str | list):
        said = f"is {kind_of(content)}" if name in given else "is missing"
        raise ApiError(f"{place}.{name} {said}; it must be a text or a list of parts", param=field)
    for i, part in enumerate(content if isinstance(content, list) else ()):
        wrong = _wrong_part(part)
        if wrong is not None:
            raise ApiError(f"{place}.{name}.{i}{wrong}", param=field)


def _wrong_part(part: Any) -> str | None:
    """What is wrong with a part of a content, after its place."""
    if isinstance(part, str):
        return None
    if not isinstance(part, dict):
        return f" is {kind_of(part)}; it must be an object"
    kind = part.get("type", "text")
    if kind not in TEXTS:
        return f" is of the type {quoted(kind)}; models here read parts of the type 'text'"
    if not isinstance(part.get("text"), str):
        return ".text must be a text" if "text" in part else ".text is missing"
    return None
