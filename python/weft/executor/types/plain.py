"""Dataclasses as plain data and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from weft.errors import InputError
from weft.executor.types.wrong import input_error


class Plain:
    """A dataclass that turns into plain data and back. Fields that weft refuses are left out: they hold defaults."""

    __pydantic_config__: ClassVar = ConfigDict(
        strict=True,
        extra="forbid",
        arbitrary_types_allowed=True,
        ser_json_bytes="hex",
        val_json_bytes="hex",
        ser_json_inf_nan="constants",
    )

    def to_dict(self) -> dict[str, Any]:
        """The fields as numbers, texts, lists and dicts. Enum members become their names, bytes
        hexadecimal, tensors `{"dtype": ..., "values": ...}`. Raises `InputError` for a field that holds a function.
        """
        try:
            held: dict[str, Any] = _writer(type(self)).dump_python(  # type: ignore[arg-type]  # a class is hashable
                self, mode="json", warnings=False
            )
        except PydanticSerializationError as error:
            raise InputError(str(error)) from None
        return held

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What `to_dict` gave, made again, with every check. Raises `InputError` for a field that there is not."""
        try:
            text = json.dumps(data)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"a {cls.__name__} is made from plain data alone: {error}") from error
        return cls.from_json(text)

    def to_json(self) -> str:
        """`to_dict` as one line of JSON; numbers that are not finite stand there as Python writes them: -Infinity."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave, made again."""
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
    """A type beside the class, since pydantic takes no settings with a class alone: how infinity is said is one."""
    return TypeAdapter(cls | None, config=cls.__pydantic_config__)
