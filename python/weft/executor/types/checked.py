"""Settings that stay right: whatever is given to a field is checked, by the constructor and by each assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, fields
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from weft.errors import InputError
from weft.executor.types.plain import Plain

_UNCHANGING = frozenset({bool, int, float, str})


class Checked(Plain):
    """A dataclass whose fields are checked, and brought into one form, when it is made and when they are assigned.

    An assignment passes the same checks as the constructor, those over several fields too; one that fails raises
    `InputError` and changes nothing. Two are equal where all their fields are, tensors by their numbers.
    """

    _is_made: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, one in _fields_of(type(self)).items():
            object.__setattr__(self, name, _checked(type(self), one, getattr(self, name)))
        self.check()
        object.__setattr__(self, "_is_made", True)

    def check(self) -> None:
        """Raise `InputError` where fields, each right by itself, do not go together. What belongs to an object that a
        field holds can be changed there, so whoever uses settings checks once more."""
        for _, value in self._mutable():
            for held in _checked_in(value):
                held.check()

    def snapshot(self) -> Self:
        """A copy that later assignments do not reach, checked."""
        self.check()
        return self._copy()

    def _copy(self) -> Self:
        twin = object.__new__(type(self))
        held = twin.__dict__
        held.update(vars(self))
        for name, value in self._mutable():
            if isinstance(value, dict):
                held[name] = dict(value)
            elif isinstance(value, Checked):
                held[name] = value._copy()
            else:
                held[name] = tuple(one._copy() for one in value)
        return twin

    def _mutable(self) -> list[tuple[str, Any]]:
        """The fields that hold something that can be changed there: settings, a tuple of them, or a dict."""
        return [
            (name, value)
            for name, value in vars(self).items()
            if value is not None
            and type(value) not in _UNCHANGING
            and (isinstance(value, Checked | dict) or _checked_in(value))
        ]

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_made:
            known = _fields_of(type(self))
            if name not in known:
                raise InputError(_no_field(type(self), name))
            value = _checked(type(self), known[name], value)
            changed = object.__new__(type(self))
            changed.__dict__.update(vars(self) | {name: value})
            changed.check()
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        raise InputError(f"{type(self).__name__}.{name} can't be deleted; assign its default")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(getattr(self, name), getattr(other, name)) for name in _fields_of(type(self)))

    __hash__ = None  # type: ignore[assignment]  # it can change


def _fields_of(cls: type) -> dict[str, Field[Any]]:
    return {one.name: one for one in fields(cls)}


def _no_field(cls: type, name: str) -> str:
    if hasattr(cls, name):
        return f"{cls.__name__}.{name} follows from the fields; assign those"
    return f"{cls.__name__} has no field {name!r}; it has {', '.join(sorted(_fields_of(cls)))}"


def _checked(cls: type, one: Field[Any], value: Any) -> Any:
    """What a field holds when it is given `value`."""
    if "refused" in one.metadata:
        _refuse(cls.__name__, one.name, value, one.default, one.metadata["refused"])
    elif parse := one.metadata.get("parse"):
        return parse(one.name, value)
    return value


def _checked_in(value: Any) -> Sequence[Checked]:
    if isinstance(value, Checked):
        return (value,)
    return value if isinstance(value, tuple) and value and isinstance(value[0], Checked) else ()


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)


def _refuse(owner: str, name: str, value: Any, default: Any, instead: str) -> None:
    if value is default or (type(value) is type(default) and value == default):
        return
    if isinstance(value, int | float) and isinstance(default, int | float) and value == default:
        return
    raise InputError(f"{owner}.{name} is not supported: {instead}")
