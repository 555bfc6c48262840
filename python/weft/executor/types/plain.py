"""Converts dataclasses to plain data and back, and pydantic's errors on their fields to weft's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, ClassVar, Self, get_args, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from weft.core.pydantic_errors import PYTHON_KINDS, expected
from weft.errors import InputError
from weft.executor.types.refused import OLDER_NAMES


class Plain:
    """Base of dataclasses that convert to plain data and back. Plain data omits a field that weft refuses if it has its
    default."""

    __pydantic_config__: ClassVar = ConfigDict(
        strict=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        ser_json_bytes="hex",
        val_json_bytes="hex",
        ser_json_inf_nan="constants",
    )

    def to_dict(self) -> dict[str, Any]:
        """The fields as numbers, texts, lists and dicts. Enum members become their names, bytes hexadecimal, and
        tensors `{"dtype": ..., "values": ...}`. Raises `InputError` for a field that holds a function."""
        try:
            held: dict[str, Any] = _writer(type(self)).dump_python(  # type: ignore[arg-type]  # a class is hashable
                self, mode="json", warnings=False
            )
        except PydanticSerializationError as error:
            raise InputError(str(error)) from None
        return held

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create an object from the result of `to_dict`. Runs every check of the constructor. Raises `InputError` for
        an unknown field."""
        try:
            text = json.dumps(data)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"a {cls.__name__} is made from plain data alone: {error}") from error
        return cls.from_json(text)

    def to_json(self) -> str:
        """The result of `to_dict` as one line of JSON. Infinity and NaN are written as in Python's json: -Infinity."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Create an object from the result of `to_json`. Runs every check of the constructor."""
        try:
            made: Self = _reader(cls).validate_json(text)  # type: ignore[arg-type]
        except ValidationError as error:
            raise input_error(cls, error) from None
        return made


@cache
def _reader(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


@cache
def _writer(cls: Any) -> TypeAdapter[Any]:
    """The serializer of a class."""
    # The config says how infinity is written. pydantic refuses a config for a dataclass, but accepts one for a union.
    return TypeAdapter(cls | None, config=cls.__pydantic_config__)


_MESSAGES = {
    "json_invalid": "a {cls} can't be read from text that is not JSON: {error}",
    "missing": "{owner} needs {name}; give it",
    "no_such_attribute": "{owner} has no field {name!r}; it has {fields}",
    "unexpected_keyword_argument": "{owner} has no field {name!r}; it has {fields}",
    "unexpected_positional_argument": "{owner} takes {name} values by position; give the others by their names",
}
"""Maps pydantic's error types to the messages that replace pydantic's."""


def input_error(cls: type, raised: ValidationError) -> InputError:
    """Convert pydantic's error for a `cls`. The message names the first invalid field, its value and the valid
    values."""
    errors = raised.errors(include_url=False)
    error = next((each for each in errors if each["type"] == "unexpected_keyword_argument"), errors[0])
    kind, context = error["type"], error.get("ctx", {})
    if isinstance(cause := context.get("error"), InputError):
        return cause
    path = _named(cls, error["loc"]) if kind != "unexpected_positional_argument" else error["loc"]
    owner, name = _owner(cls, path), str(path[-1]) if path else f"a {cls.__name__}"
    if kind == "no_such_attribute" and hasattr(owner, name):
        return InputError(f"{owner.__name__}.{name} follows from the fields; assign those")
    if kind in ("no_such_attribute", "unexpected_keyword_argument") and (
        newer := OLDER_NAMES.get(f"{owner.__name__}.{name}")
    ):
        return InputError(f"{owner.__name__}.{name} has a newer name: {newer}")
    if message := _MESSAGES.get(kind):
        names = ", ".join(sorted(field.name for field in fields(owner)))
        context |= {"cls": cls.__name__, "owner": owner.__name__, "name": name, "fields": names}
        return InputError(message.format(**context))
    wanted = expected(PYTHON_KINDS, error) or error["msg"].removeprefix("Input should be ")
    return InputError(f"{_place(path) or name} is {error['input']!r}; it must be {wanted}")


def _named(cls: Any, path: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Replace the position of an argument at the start of a path by the field's name."""
    if not path or not isinstance(path[0], int):
        return path
    return (fields(cls)[path[0]].name, *path[1:])


def _owner(cls: type, path: tuple[int | str, ...]) -> type:
    """The class that declares the last field of a path."""
    for part in path[:-1]:
        hint = get_type_hints(cls).get(str(part))
        cls = next(
            (arm for arm in (hint, *get_args(hint)) if isinstance(arm, type) and is_dataclass(arm)), cls
        )
    return cls


def _place(path: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
