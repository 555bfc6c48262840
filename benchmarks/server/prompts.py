"""The clients' prompts: weft-tiny's held-out records, every other one guided by its schema."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from weft.tiny.records import Schema, example

MAX_TOKENS = 96


@dataclass(frozen=True)
class Asked:
    """A prompt. If it has a schema, its answer is guided."""

    prompt: str
    schema: Schema | None


def prompts(count: int, seed: int = 0) -> list[Asked]:
    """Return `count` prompts. The same seed returns the same prompts."""
    draw = random.Random(seed)
    records = [example(draw, "heldout") for _ in range(count)]
    return [Asked(one.prompt, one.schema if i % 2 else None) for i, one in enumerate(records)]


def body(asked: Asked) -> dict[str, Any]:
    """Return the body of a chat request."""
    found: dict[str, Any] = {"messages": [{"role": "user", "content": asked.prompt}], "stream": True}
    found |= {"max_tokens": MAX_TOKENS, "temperature": 0, "stream_options": {"include_usage": True}}
    if asked.schema is not None:
        found["guided_json"] = asked.schema
    return found
