"""Turns pydantic's errors into weft's words: picks the error to report, and gives its place and the valid types.

Each front builds its own sentence from these parts: the executor in Python's terms, the server in JSON's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

JSON_KINDS = {
    "string_type": "a text",
    "is_instance_of": "a text",  # a path, which TOML has as a text
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "a smaller integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "literal_error": "{expected}",
}
"""The expected value in JSON or TOML, by the type of the error. `{...}` are entries of the error's context."""

PYTHON_KINDS = {
    **JSON_KINDS,
    "bool_type": "True or False",
    "callable_type": "a function",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "dataclass_exact_type": "a {class_name}",
    "dataclass_type": "made from a dict of a {class_name}'s fields",
    "dict_type": "a dict",
    "is_instance_of": "a {class}",
    "sequence_str": "a list, not a text",
    "string_too_short": "a text that is not empty",
    "string_type": "a text that is not empty",
}
"""The expected value in Python, by the type of the error."""

OF_A_KEY = "[key]"


def expected(kinds: Mapping[str, str], *errors: Mapping[str, Any]) -> str | None:
    """Describe the types that a value may have: "a text, a list or an object". pydantic reports one of `errors` for
    each type. None if `kinds` has none of them."""
    words = [
        kinds[error["type"]].format(**error.get("ctx", {})) for error in errors if error["type"] in kinds
    ]
    *others, last = dict.fromkeys(words) or [None]
    return f"{', '.join(map(str, others))}{',' if len(others) > 1 else ''} or {last}" if others else last


@dataclass(frozen=True)
class Fault:
    """An error to report. `place` is its path in the data. `others` are the errors for the other types that the value
    may have there."""

    error: ErrorDetails
    place: list[str]
    others: list[ErrorDetails]


def first_fault(raised: ValidationError, data: Any) -> Fault:
    """The error to report for `data`: it is about the first wrong field, in pydantic's order."""
    # A value that may have several types has an error for each type. The type that fits best has the deepest error.
    errors = raised.errors(include_url=False)
    places = [_place(error, data) for error in errors]
    field = places[0][:1]
    chosen = max(
        (i for i, place in enumerate(places) if place[:1] == field),
        key=lambda i: (len(places[i]), not _is_of_type(errors[i])),
    )
    place = places[chosen]
    others = [
        error
        for i, error in enumerate(errors)
        if i > chosen and places[i] == place and _is_of_type(error) and _is_of_type(errors[chosen])
    ]
    return Fault(errors[chosen], place, others)


def _is_of_type(error: ErrorDetails) -> bool:
    """Whether the error is about the type of the value, not its content."""
    return error["type"] in JSON_KINDS and error["type"].endswith("_type")


def _place(error: ErrorDetails, data: Any) -> list[str]:
    """The path of an error in the data: pydantic's path without the names of types."""
    if not error["loc"]:
        return []
    place: list[str] = []
    *parents, last = error["loc"]
    for part in parents:
        if _has(data, part):
            place.append(str(part))
            data = data[part]
    return [*place, str(last)] if _has(data, last) or error["type"] == "missing" else place


def _has(data: Any, part: Any) -> bool:
    if isinstance(data, dict):
        return part in data
    return isinstance(data, list) and isinstance(part, int) and part < len(data)
