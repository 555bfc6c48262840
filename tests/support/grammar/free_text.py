"""Guides that apply after free text, for weft-tiny."""

from __future__ import annotations

from weft import Guide

DIGITS = Guide.regex("[0-9]{3}")
PLACES = Guide.choice(["north by northwest", 'north"}', "southern cross"])
SCHEMA = Guide.json_schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})

# (guide, temperature). weft-tiny answers with JSON, so it writes most of these triggers without a guide.
ROWS: list[tuple[Guide | None, float]] = [
    (Guide.after('": ', DIGITS), 0.0),
    (Guide.after('e": "', PLACES), 0.0),
    (Guide.after("i", Guide.after(":", SCHEMA)), 0.0),
    (Guide.after("e", SCHEMA, max_free_tokens=9), 1.0),
    (Guide.after("<|endofthought|>", DIGITS, max_free_tokens=4), 1.0),
    (None, 0.0),
    (Guide.after(":", Guide.json()), 1.0),
    (Guide.after(', "', DIGITS, max_free_tokens=12), 0.0),
]


def rows(special: int) -> list[tuple[Guide | None, float]]:
    """ROWS, plus a row whose free text ends at a special token."""
    return [*ROWS, (Guide.after(special, PLACES, max_free_tokens=5), 0.0)]
