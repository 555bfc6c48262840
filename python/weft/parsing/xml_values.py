"""Turns what XML holds into JSON, by the schema of the arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from weft.parsing.schema import Schema
from weft.parsing.xml_styles import Hint, XmlStyle

Candidate = tuple[str, Any]
"""JSON text, and the value."""
_WORDS = {"True": "true", "False": "false", "None": "null"}
"""What Python calls them, as some models do."""
_EMPTY: tuple[Candidate, ...] = (("[]", []), ("{}", {}))


def named(name: str) -> str:
    """What begins a member of an object."""
    return f"{json.dumps(name, ensure_ascii=False)}: "


def leaf(text: str, hint: Hint, schema: Schema, style: XmlStyle) -> str:
    """The JSON of a value without values inside: the first that the schema takes of those that it may be."""
    texts, values = list(_texts(text, style.has_lines)), list(_values(text))
    if style.has_empty and not text.strip():
        values += _EMPTY
    is_text = hint == "string" or (hint is None and schema.types == {"string"})
    candidates = [*texts, *values] if is_text else [*values, *texts]
    verdicts = []
    for candidate, value in candidates:
        verdicts.append(schema.holds(value))
        if verdicts[-1]:
            return candidate
    unsure = verdicts.index(None) if None in verdicts else 0
    return candidates[unsure][0]


def _texts(text: str, has_lines: bool) -> Iterator[Candidate]:
    """As a string: without the lines around it, as it is, without the blanks around it."""
    forms = [text, text.strip()]
    if has_lines and len(text) > 1 and text.startswith("\n") and text.endswith("\n"):
        forms.insert(0, text[1:-1])
    for form in dict.fromkeys(forms):
        yield json.dumps(form, ensure_ascii=False), form


def _values(text: str) -> Iterator[Candidate]:
    """As JSON."""
    stripped = text.strip()
    stripped = _WORDS.get(stripped, stripped)
    try:
        yield stripped, json.loads(stripped, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")
