"""Requests for tests of the server: prompts in weft-tiny's format, and plain HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

PROMPT = 'Text: Ada Berg is 31 years old.\nSchema: {"name": string, "age": integer}\nJSON: '
MESSAGES: list[Any] = [{"role": "user", "content": PROMPT}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ENDLESS = {"ignore_eos": True, "max_tokens": 900, "temperature": 1.0}
ANSWER = {"name": "Ada Berg", "age": 31}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "find_person", "parameters": SCHEMA, "strict": True},
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    },
]


def ask(
    url: str, data: Any = None, *, method: str | None = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Send a request, and return the status and the body, as JSON if it is JSON. `data` is sent as JSON, bytes as
    they are."""
    body = data if isinstance(data, bytes | None) else json.dumps(data).encode()
    request = urllib.request.Request(url, body, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, _read(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _read(error.read())


def _read(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return raw.decode()


def events(raw: str) -> list[Any]:
    """Return the data of server-sent events without the last one, which must be [DONE]."""
    found = [line.removeprefix("data: ") for line in raw.splitlines() if line.startswith("data: ")]
    assert found and found[-1] == "[DONE]"
    return [json.loads(one) for one in found[:-1]]
