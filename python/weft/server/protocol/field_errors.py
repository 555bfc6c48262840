"""What pydantic finds wrong with a body, in weft's words: the field, what it must be, and what it is instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from weft.errors import brief
from weft.server.errors import ApiError, kind_of, quoted

REFUSAL, UNKNOWN = "unsupported_parameter", "unknown_parameter"
MOST_LETTERS = 100
"""Of a field's name that is repeated."""
KINDS = {
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
"""What a value must be, by the type of pydantic's error."""
OF_A_KEY = "[key]"


class Fields(Protocol):
    """A kind of body, or of a field's members."""

    def within(self, name: str, /) -> Fields | None:
        """The members of a field; None where they are not known."""

    def meant_by(self, name: str, /) -> str | None:
        """The field that is likely meant by a name that none has."""


def field_error(error: ValidationError, data: Any, body: Fields) -> ApiError:
    """What is wrong first with `data`, which is to be a `body`, in one line."""
    first, place, others = _first(error.errors(include_url=False), data)
    if first["type"] == REFUSAL:
        param = brief(".".join([*place, first["ctx"]["name"]]), MOST_LETTERS)
        return ApiError(first["msg"], param=param, code=REFUSAL)
    is_unknown = first["type"] == UNKNOWN
    if is_unknown:
        place = [*place, first["ctx"]["name"]]
    path = brief(".".join(place), MOST_LETTERS)
    if is_unknown:
        unknown = f"unknown field {quoted('.'.join(place))}"
        return ApiError(unknown + _hint(body, place), param=path, code=UNKNOWN)
    said = in_words(first, others)
    return ApiError(f"{path}: {said}" if path else said, param=path or None)


def wrong_value(error: ValidationError, value: Any) -> tuple[list[str], str]:
    """What is wrong first with a value: its place within the value, and what is said of it."""
    first, place, others = _first(error.errors(include_url=False), value)
    return place, in_words(first, others)


def in_words(error: Mapping[str, Any], others: Sequence[Mapping[str, Any]] = ()) -> str:
    """What is wrong with a value. `others` are the errors of other types that it might have been of."""
    kind, context, value = error["type"], error.get("ctx", {}), error.get("input")
    if kind == "missing":
        return "is missing"
    if kind == "too_short":
        least = "one" if context["min_length"] == 1 else context["min_length"]
        return f"{_size(context['actual_length'])}; it must have at least {least}"
    if kind in ("string_too_long", "string_too_short"):
        bound = "at most" if kind == "string_too_long" else "at least"
        most = context.get("max_length", context.get("min_length"))
        return f"has {len(value or '')} characters; it must have {bound} {most}"
    if kind not in KINDS:
        return str(error["msg"]).removeprefix("Value error, ")
    wanted = _either([KINDS[one["type"]].format(**one.get("ctx", {})) for one in (error, *others)])
    if error["loc"] and error["loc"][-1] == OF_A_KEY:
        return f"this name must be {wanted}"
    return f"must be {wanted}, not {kind_of(value)}"


def _size(count: int) -> str:
    return f"has {count}" if count else "is empty"


def _either(kinds: Sequence[str]) -> str:
    """One of these: a, b, or c."""
    *most, last = dict.fromkeys(kinds)
    if not most:
        return last
    return f"{', '.join(most)}{',' if len(most) > 1 else ''} or {last}"


def _hint(body: Fields, place: Sequence[str]) -> str:
    """The field that was likely meant by one that is unknown."""
    *parents, name = place
    owner: Fields | None = body
    for part in parents:
        owner = owner.within(part) if owner is not None else None
    meant = owner.meant_by(name[:MOST_LETTERS]) if owner is not None else None
    if meant is None:
        return ""
    if parents or "." not in meant:
        return f"; did you mean '{'.'.join([*parents, meant])}'?"
    outer, inner = meant.split(".")
    return f'; did you mean "{outer}": {{"{inner}": ...}}?'


def _first(errors: Sequence[ErrorDetails], data: Any) -> tuple[ErrorDetails, list[str], list[ErrorDetails]]:
    """The first error, its place, and others of that place. Of a value that may be of several types each has an error
    of its own: the one that got furthest is told."""
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
    return errors[chosen], place, others


def _is_of_type(error: ErrorDetails) -> bool:
    """Whether a value is none of a type at all."""
    return error["type"] in KINDS and error["type"].endswith("_type")


def _place(error: ErrorDetails, data: Any) -> list[str]:
    """Where in the body it is: of pydantic's place the parts that the client sent, and not the names of types."""
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
