"""`Guide.json_schema`: a schema's text from what stands for a schema, and what is wrong with it at first sight."""

from __future__ import annotations

import json
from typing import Any

from weft.errors import GuideError
from weft.grammar.guide import Guide
from weft.grammar.schema import structure


def make(
    schema: Any,
    *,
    strict: bool,
    max_whitespace: int | None,
    any_order: bool,
    separators: tuple[str, str] | None,
    open_objects: bool,
) -> Guide:
    """The guide of a schema: a dict, its JSON text, or a pydantic model. Raises `GuideError`."""
    _check_separators(separators)
    if max_whitespace is not None and (type(max_whitespace) is not int or max_whitespace < 1):
        raise GuideError(
            f"max_whitespace is {max_whitespace!r}; it must be a number from 1 on, or None for no bound"
        )
    data = _data(schema)
    structure.check(data)
    return Guide(
        "json_schema",
        json.dumps(data),
        max_whitespace,
        strict=bool(strict),
        any_order=bool(any_order),
        separators=separators,
        open_objects=bool(open_objects),
    )


def check(source: str) -> None:
    """Raises `GuideError` for text that is no JSON schema."""
    structure.check(_data(source))


def _data(schema: Any) -> Any:
    """The schema as plain JSON data."""
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    elif hasattr(schema, "json_schema") and callable(schema.json_schema):
        schema = schema.json_schema()
    try:
        return json.loads(schema if isinstance(schema, str) else json.dumps(schema))
    except (TypeError, ValueError) as error:
        what = " (a str is read as JSON, not as a path)" if isinstance(schema, str) else ""
        raise GuideError(f"the JSON schema is not valid JSON{what}: {error}") from None
    except RecursionError:
        raise GuideError("the JSON schema is nested too deeply") from None


def _check_separators(separators: Any) -> None:
    """A comma and a colon, each with spaces around it or none."""
    if separators is None:
        return
    fits = isinstance(separators, tuple) and len(separators) == 2
    if not fits or any(
        not isinstance(text, str) or text.strip(" ") != mark
        for text, mark in zip(separators, ",:", strict=True)
    ):
        raise GuideError(
            f"separators is {separators!r}; it must be a comma and a colon with spaces or none, as (', ', ': ')"
        )
