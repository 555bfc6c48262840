"""What pydantic finds wrong, in weft's words: the one place where its errors become `InputError`."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import get_args, get_type_hints

from pydantic import ValidationError

from weft.errors import InputError
from weft.executor.types.refused import OLDER_NAMES

_SAID = {
    "json_invalid": "a {cls} can't be read from text that is not JSON: {error}",
    "missing": "{owner} needs {name}; give it",
    "no_such_attribute": "{owner} has no field {name!r}; it has {fields}",
    "unexpected_keyword_argument": "{owner} has no field {name!r}; it has {fields}",
    "unexpected_positional_argument": "{owner} takes {name} values by position; give the others by their names",
}
"""Whole messages, by the type of the error."""

_WANTED = {
    "bool_type": "True or False",
    "callable_type": "a function",
    "float_type": "a number",
    "int_type": "a whole number",
    "dataclass_exact_type": "a {class_name}",
    "dataclass_type": "made from a dict of a {class_name}'s fields",
    "is_instance_of": "a {class}",
    "sequence_str": "a list, not a text",
    "literal_error": "{expected}",
    "string_too_short": "a text that is not empty",
    "string_type": "a text that is not empty",
}
"""What a value must be."""


def input_error(cls: type, error: ValidationError) -> InputError:
    """The first thing that is wrong with the fields of a `cls`: the field, what it got, and what is right."""
    found = error.errors(include_url=False)
    first = next((one for one in found if one["type"] == "unexpected_keyword_argument"), found[0])
    kind, context = first["type"], first.get("ctx", {})
    if isinstance(said := context.get("error"), InputError):
        return said
    path = _named(cls, first["loc"]) if kind != "unexpected_positional_argument" else first["loc"]
    owner, name = _owner(cls, path), str(path[-1]) if path else f"a {cls.__name__}"
    if kind == "no_such_attribute" and hasattr(owner, name):
        return InputError(f"{owner.__name__}.{name} follows from the fields; assign those")
    if kind in ("no_such_attribute", "unexpected_keyword_argument") and (
        newer := OLDER_NAMES.get(f"{owner.__name__}.{name}")
    ):
        return InputError(f"{owner.__name__}.{name} has a newer name: {newer}")
    if message := _SAID.get(kind):
        names = ", ".join(sorted(field.name for field in fields(owner)))
        context |= {"cls": cls.__name__, "owner": owner.__name__, "name": name, "fields": names}
        return InputError(message.format(**context))
    words = _WANTED.get(kind, "").format(**context) or first["msg"].removeprefix("Input should be ")
    return InputError(f"{_place(path) or name} is {first['input']!r}; it must be {words}")


def _named(cls: type, path: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The path, where a constructor's argument that was given by position has its field's name."""
    return tuple(
        fields(cls)[part].name if at == 0 and isinstance(part, int) else part for at, part in enumerate(path)
    )


def _owner(cls: type, path: tuple[int | str, ...]) -> type:
    """The class whose field the path leads to."""
    for part in path[:-1]:
        hint = get_type_hints(cls).get(str(part))
        cls = next(
            (arm for arm in (hint, *get_args(hint)) if isinstance(arm, type) and is_dataclass(arm)), cls
        )
    return cls


def _place(path: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
