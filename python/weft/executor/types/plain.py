"""Dataclasses as plain data and back: what JSON holds, driven by the fields' annotations."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Self

import torch

from weft.errors import InputError

_AS_IT_IS = frozenset({bool, int, float, str})
"""Plain data holds these as they are."""


class Plain:
    """A dataclass that turns into plain data and back. Fields that weft refuses are left out: they hold defaults."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as numbers, texts, lists and dicts. Enum members become their names, bytes
        hexadecimal, tensors `{"dtype": ..., "values": ...}`. Raises `InputError` for a field that holds a function.
        """
        return _encode_fields(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What `to_dict` gave, made again, with every check. Raises `InputError` for a field that there is not."""
        made: Self = _decode_dataclass(cls, data)
        return made

    def to_json(self) -> str:
        """`to_dict` as one line of JSON; numbers that are not finite stand there as Python writes them: -Infinity."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave, made again."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"a {cls.__name__} can't be read from text that is not JSON: {error}") from error
        return cls.from_dict(data)


def _encode_fields(value: Any) -> dict[str, Any]:
    return {
        field.name: _encode(f"{type(value).__name__}.{field.name}", getattr(value, field.name))
        for field in fields(value)
        if field.init and "refused" not in field.metadata
    }


def _encode(name: str, value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}
    if is_dataclass(value):
        return _encode_fields(value)
    if isinstance(value, Mapping):
        return {str(key): _encode(name, entry) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [_encode(name, entry) for entry in value]
    raise InputError(
        f"{name} holds {value!r}, which is no plain data; leave it out, and give it where it is used"
    )


def _decode_dataclass(cls: type, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise InputError(f"a {cls.__name__} is made from a dict of its fields, not from {data!r}")
    hints = typing.get_type_hints(cls)
    known = {field.name for field in fields(cls) if field.init}
    if unknown := sorted(set(data) - known):
        raise InputError(f"{cls.__name__} has no field {unknown[0]!r}; it has {', '.join(sorted(known))}")
    try:
        return cls(**{name: _decode(hints[name], value) for name, value in data.items()})
    except TypeError as error:
        raise InputError(f"a {cls.__name__} can't be made of {sorted(data)}: {error}") from error


def _decode(hint: Any, value: Any) -> Any:
    """`value`, turned into what `hint` says where plain data holds it in another form; else as it is."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if origin in (typing.Union, types.UnionType):
        return next((_decode(arm, value) for arm in arguments if _fits(arm, value)), value)
    if isinstance(hint, type) and issubclass(hint, Enum) and isinstance(value, str):
        if value not in hint.__members__:
            raise InputError(f"{value!r} is no {hint.__name__}; it has {', '.join(hint.__members__)}")
        return hint[value]
    if hint is bytes and isinstance(value, str):
        try:
            return bytes.fromhex(value)
        except ValueError as error:
            raise InputError(f"bytes can't be read from text that is not hexadecimal: {error}") from error
    if hint is torch.Tensor and isinstance(value, Mapping):
        return _tensor(value)
    if is_dataclass(hint) and isinstance(hint, type):
        return _decode_dataclass(hint, value)
    if isinstance(value, Mapping) and len(arguments) == 2:
        key = arguments[0] if arguments[0] in (int, str) else str
        return {key(name): _decode(arguments[1], entry) for name, entry in value.items()}
    if isinstance(value, list) and arguments:
        made = value if arguments[0] in _AS_IT_IS else [_decode(arguments[0], entry) for entry in value]
        return tuple(made) if origin is tuple else made
    return value


def _tensor(data: Mapping[str, Any]) -> torch.Tensor:
    dtype = getattr(torch, str(data.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(
            f"a tensor's dtype is {data.get('dtype')!r}; it must be one of torch's, such as 'float32'"
        )
    try:
        return torch.tensor(data.get("values"), dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"a tensor's values are no numbers, or do not fit: {error}") from None


def _fits(hint: Any, value: Any) -> bool:
    """Whether plain data `value` can be meant for this arm of a union."""
    origin = typing.get_origin(hint) or hint
    if origin is Callable or origin is type(None):
        return False
    if isinstance(value, Mapping):
        return is_dataclass(origin) or origin in (torch.Tensor, Mapping, dict)
    if isinstance(value, list):
        return origin in (tuple, list, Sequence)
    if isinstance(origin, type) and issubclass(origin, Enum):
        return isinstance(value, str)
    return isinstance(origin, type) and isinstance(value, origin)
