"""What all bodies have in common: every field is known, and one that weft can't honour is refused by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from inspect import isclass
from types import NoneType
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from weft.core.pydantic_errors import first_fault
from weft.errors import brief
from weft.server.errors import ApiError, in_words, kind_of, quoted

REFUSAL, UNKNOWN = "unsupported_parameter", "unknown_parameter"
MAX_NAME = 100
"""Letters of a field's name that an error repeats."""
MOST_ENTRIES = 10_000
MOST_COUNTED = 2**31 - 1
"""Of tokens before a guide, or blanks: numbers of the engine and of the grammar libraries have 32 bits."""
MOST_EXACT = 2**53
"""Floats below are exact integers where they are whole."""
T = TypeVar("T")


def _few(value: Any) -> Any:
    """A list or an object of so many entries; others fail before anything looks at each."""
    if isinstance(value, list | dict) and len(value) > MOST_ENTRIES:
        raise ValueError(f"has {len(value)} entries; at most {MOST_ENTRIES} are read")
    return value


class _FirstOnly(FailFast):
    """pydantic's, as it may stand in a union."""

    __hash__ = object.__hash__


Few = Annotated[list[T], _FirstOnly(), BeforeValidator(_few)]
"""A list that is not too long. The first entry that is wrong is told, and no other looked at: a body has room for
millions, and pydantic would make an error of each."""
Object = Annotated[dict[str, Any], BeforeValidator(_few)]


class Body(BaseModel):
    """A body. `REFUSED` names fields that other servers know and weft does not honour: a reason, and the values that
    ask for nothing, which are accepted. `OTHER_NAMES` are fields by what they are called elsewhere. A field that is
    null is left out, unless null is a value of its own.

    Values are of the type that a field has: "5" is no number, and 1 is not true; 5.0 is 5."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {}
    OTHER_NAMES: ClassVar[Mapping[str, str]] = {}
    _unset: ClassVar[frozenset[str]] = frozenset()
    """Fields whose default null stands for."""
    _known: ClassVar[frozenset[str]] = frozenset()
    """Names that a body may have."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        cls._unset = frozenset(
            field.alias or name
            for name, field in cls.model_fields.items()
            if not field.is_required() and field.annotation is not Any and not _takes_null(field.annotation)
        )
        cls._known = (
            frozenset(field.alias or name for name, field in cls.model_fields.items()) | cls.REFUSED.keys()
        )

    @classmethod
    def read(cls, data: Any) -> Self:
        """The body that JSON `data` says. Raises `ApiError`, naming the field."""
        if not isinstance(data, dict):
            raise ApiError(f"the body is {kind_of(data)}; it must be an object")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise cls._api_error(error, data) from None

    @classmethod
    def _api_error(cls, error: ValidationError, data: Any) -> ApiError:
        """The first thing wrong with `data`, in one line."""
        fault = first_fault(error, data)
        kind, place = fault.error["type"], fault.place
        if kind in (REFUSAL, UNKNOWN):
            place = [*place, fault.error["ctx"]["name"]]
        path = brief(".".join(place), MAX_NAME)
        if kind == REFUSAL:
            return ApiError(fault.error["msg"], param=path, code=REFUSAL)
        if kind == UNKNOWN:
            return ApiError(
                f"unknown field {quoted('.'.join(place))}{cls._hint(place)}", param=path, code=UNKNOWN
            )
        message = in_words(fault.error, fault.others)
        return ApiError(f"{path}: {message}" if path else message, param=path or None)

    @classmethod
    def _hint(cls, place: Sequence[str]) -> str:
        """The field that is likely meant by an unknown one."""
        *parents, name = place
        owner: type[Body] | None = cls
        for part in parents:
            owner = owner.within(part) if owner is not None else None
        meant = owner.meant_by(name[:MAX_NAME]) if owner is not None else None
        if meant is None:
            return ""
        if parents or "." not in meant:
            return f"; did you mean '{'.'.join([*parents, meant])}'?"
        outer, inner = meant.split(".")
        return f'; did you mean "{outer}": {{"{inner}": ...}}?'

    @classmethod
    def within(cls, name: str) -> type[Body] | None:
        """What a field's members are, where it is an object whose members are known."""
        annotation = next(
            (field.annotation for own, field in cls.model_fields.items() if (field.alias or own) == name),
            None,
        )
        kinds = (annotation, *get_args(annotation))
        return next((one for one in kinds if isclass(one) and issubclass(one, Body)), None)

    @classmethod
    def meant_by(cls, name: str) -> str | None:
        """The field that is likely meant by a name that none has."""
        if name in cls.OTHER_NAMES:
            return cls.OTHER_NAMES[name]
        known = [*(field.alias or own for own, field in cls.model_fields.items()), *cls.REFUSED]
        return next(iter(difflib.get_close_matches(name, known, 1)), None)

    @model_validator(mode="before")
    @classmethod
    def _prepared(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, (reason, inert) in cls.REFUSED.items():
            if name in data and not _is_inert(data[name], inert):
                raise PydanticCustomError(
                    REFUSAL, "{name} is not supported: {reason}", {"name": name, "reason": reason}
                )
        unknown = next((name for name in data if name not in cls._known), None)
        if (
            unknown is not None
        ):  # not left to pydantic, which makes an error of each; and it may be a missing one's name
            raise PydanticCustomError(UNKNOWN, "unknown field", {"name": unknown})
        left_out = {name for name in cls._unset if name in data and data[name] is None}
        left_out |= cls.REFUSED.keys() & data.keys()
        return {name: _number(value) for name, value in data.items() if name not in left_out}


def _takes_null(annotation: Any) -> bool:
    return NoneType in get_args(annotation)


def _number(value: Any) -> Any:
    """JSON has one kind of number: some clients write 5 as 5.0."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < MOST_EXACT
    return int(value) if is_whole else value


def _is_inert(value: Any, inert: tuple[Any, ...]) -> bool:
    """Whether a value asks for nothing: None, or one of those, and True is not 1."""
    return value is None or any(value == one and type(value) is type(one) for one in inert)
