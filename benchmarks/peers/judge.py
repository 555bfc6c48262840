"""Checks answers against their schemas with the package jsonschema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema

from .protocol import Answer, Prompt


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    """Whether a text is JSON that satisfies the schema."""
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def tally(prompts: Sequence[Prompt], answers: Sequence[Answer]) -> dict[str, int]:
    """Count the answers, those that were cut at the limit, and the invalid ones among the others. An answer without
    a schema is always valid."""
    whole = [(p, a) for p, a in zip(prompts, answers, strict=True) if a.is_whole]
    wrong = [a for p, a in whole if p.schema is not None and not is_valid(a.text, p.schema)]
    return {"answers": len(answers), "cut": len(answers) - len(whole), "invalid": len(wrong)}
