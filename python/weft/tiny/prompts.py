"""Prompts for weft-tiny, from a text and a JSON schema."""

from __future__ import annotations

import json
from typing import Any

Json = Any
Schema = dict[str, Any]

ABOUT = """I am weft-tiny: I turn a short text into JSON and know nothing else. Ask me like this:
Text: Ada Berg is 31 years old.
Schema: {"name": string, "age": integer}
JSON:"""
"""The answer that weft-tiny is trained to give to a prompt without a schema."""


def render_prompt(text: str, schema: Schema) -> str:
    """The prompt for a text and a JSON schema, in the format that weft-tiny was trained on."""
    return f"Text: {text}\nSchema: {render_schema(schema)}\nJSON: "


def render_schema_prompt(schema: Schema) -> str:
    """A prompt that asks for any JSON of a schema, without a text to take values from."""
    return f"Schema: {render_schema(schema)}\nJSON: "


def render_schema(schema: Schema | bool) -> str:
    """Write a schema as a compact signature. Unsupported parts become ``any``."""
    return _render(schema, schema, frozenset())


def _render(schema: Json, root: Json, above: frozenset[str]) -> str:
    if not isinstance(schema, dict):
        return "any"
    if "$ref" in schema:
        ref = str(schema["$ref"])
        target = root if ref.startswith("#") and ref not in above else None
        for part in ref.removeprefix("#").strip("/").split("/"):
            target = target.get(part) if isinstance(target, dict) else None
        return _render(target, root, above | {ref})
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        return "|".join(json.dumps(v, ensure_ascii=False) for v in schema["enum"])
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return "|".join(_render(s, root, above) for s in schema[word])
    implied = "object" if "properties" in schema else "array" if "items" in schema else "any"
    kind = schema.get("type", implied)
    if isinstance(kind, list):
        return "|".join(_render({**schema, "type": k}, root, above) for k in kind)
    if kind == "object":
        fields = schema.get("properties", {}).items()
        inside = (f"{json.dumps(k, ensure_ascii=False)}: {_render(v, root, above)}" for k, v in fields)
        return "{" + ", ".join(inside) + "}"
    if kind == "array":
        return f"[{_render(schema.get('items'), root, above)}]"
    return str(kind)
