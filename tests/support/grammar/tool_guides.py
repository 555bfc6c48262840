"""Tool calls and structural tags for weft-tiny."""

from __future__ import annotations

from typing import Any

from weft import Guide

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
}
TOOLS = [{"type": "function", "function": {"name": "person", "parameters": PERSON}}]


def tags(*names: str) -> dict[str, Any]:
    """Free text with triggered tags: an object with one of `names` after each `{"`, which weft-tiny writes without a
    guide."""
    content = {"type": "json_schema", "json_schema": {"type": "integer"}}
    return {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ['{"'],
            "tags": [
                {"type": "tag", "begin": f'{{"{name}": ', "content": content, "end": "}"} for name in names
            ],
        },
    }


GUIDES = [
    Guide.tools(TOOLS, style="llama", required="person"),
    Guide.tools(TOOLS, style="qwen_3", required=True),
    Guide.tools(TOOLS, style="qwen_3"),
    Guide.structural_tag(tags("one", "two")),
]
