"""Base class for settings that are always valid: the constructor and each assignment check the fields."""

from __future__ import annotations

import copy
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Any, ClassVar, Self, dataclass_transform

import torch
from pydantic import SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import PydanticSerializationError, SchemaValidator

from weft.errors import InputError
from weft.executor.types.plain import Plain, input_error
from weft.executor.types.refused import REFUSED


@dataclass_transform(eq_default=False)
class Settings(Plain):
    """Base of pydantic dataclasses that check their fields on construction and on assignment.

    An assignment runs the same checks as the constructor, including those over several fields. If a check fails, it
    raises `InputError` and changes nothing. Two objects are equal if all their fields are; tensors compare by their
    values.
    """

    __pydantic_validator__: ClassVar[SchemaValidator]
    _refused: ClassVar[tuple[Field[Any], ...]]

    def __init_subclass__(cls) -> None:
        dataclass(cls, eq=False)
        declared = fields(cls)  # type: ignore[arg-type]
        cls._refused = tuple(one for one in declared if f"{cls.__name__}.{one.name}" in REFUSED)
        made = cls.__init__

        @wraps(made)
        def told(self: Any, *args: Any, **given: Any) -> None:
            try:
                made(self, *args, **given)
            except ValidationError as error:
                raise input_error(cls, error) from None

        cls.__init__ = told  # type: ignore[method-assign]

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Raise `InputError` for fields that are valid alone but not in combination. Subclasses override this."""

    @model_serializer(mode="wrap")
    def _plain(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        owner = type(self).__name__
        for name, value in vars(self).items():
            if callable(value) or (isinstance(value, dict) and value):
                raise PydanticSerializationError(
                    f"{owner}.{name} holds {value!r}, no plain data; leave it out, and give it where it is used"
                )
        dumped: dict[str, Any] = dump(self)
        left_out = {one.name for one in self._refused} - given_refused(self)
        return {name: value for name, value in dumped.items() if name not in left_out}

    def snapshot(self) -> Self:
        """A copy that later assignments do not change. It shares tensors and functions. Raises `InputError` if the
        fields do not fit together."""
        # Check again: an assignment to a nested object runs only that object's checks.
        twin = copy.copy(self)
        vars(twin).update({name: _kept(value) for name, value in vars(self).items()})
        twin.check()
        return twin

    def __setattr__(self, name: str, value: Any) -> None:
        changed = copy.copy(self)
        try:
            self.__pydantic_validator__.validate_assignment(changed, name, value)
        except ValidationError as error:
            raise input_error(type(self), error) from None
        vars(self).update(vars(changed))

    def __delattr__(self, name: str) -> None:
        raise InputError(f"{type(self).__name__}.{name} can't be deleted; assign its default")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(_equal(value, vars(other)[name]) for name, value in vars(self).items())

    __hash__ = None  # type: ignore[assignment]  # it can change


def given_refused(settings: Settings) -> set[str]:
    """The names of the refused fields that differ from their default."""
    held = vars(settings)
    return {one.name for one in settings._refused if not _equal(held[one.name], _default(one))}


def _default(declared: Field[Any]) -> Any:
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def _kept(value: Any) -> Any:
    if isinstance(value, Settings):
        return value.snapshot()
    if isinstance(value, list):
        return (
            [_kept(one) for one in value] if value and isinstance(value[0], Settings | list) else list(value)
        )
    return dict(value) if isinstance(value, dict) else value


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    return bool(one == other)
