"""What all bodies have in common: every field is known, and one that weft can't honour is refused by name."""

from __future__ import annotations

import difflib
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from weft.errors import brief
from weft.server.errors import ApiError, quoted

REFUSAL = "unsupported_parameter"
MOST_ENTRIES = 10_000
MOST_LETTERS = 100
"""Of a field's name that is repeated."""
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
    ask for nothing, which are accepted."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    REFUSED: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {}

    @classmethod
    def read(cls, data: Any) -> Self:
        """The body that JSON `data` says. Raises `ApiError`, naming the field."""
        if not isinstance(data, dict):
            raise ApiError(f"the body is a JSON {type(data).__name__}; it must be an object")
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise _api_error(error, [*cls.model_fields, *cls.REFUSED]) from None

    @model_validator(mode="before")
    @classmethod
    def _without_refused(cls, data: Any) -> Any:
        if not isinstance(data, dict) or cls.REFUSED.keys().isdisjoint(data):
            return data
        for name, (reason, inert) in cls.REFUSED.items():
            if name in data and not _is_inert(data[name], inert):
                raise PydanticCustomError(
                    REFUSAL, "{name} is not supported: {reason}", {"name": name, "reason": reason}
                )
        return {name: value for name, value in data.items() if name not in cls.REFUSED}


def _is_inert(value: Any, inert: tuple[Any, ...]) -> bool:
    """Whether a value asks for nothing: None, or one of those, and True is not 1."""
    return value is None or any(value == one and type(value) is type(one) for one in inert)


def _api_error(error: ValidationError, names: list[str]) -> ApiError:
    """What is wrong first, in one line."""
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == REFUSAL:
        param = brief(".".join([*place, first["ctx"]["name"]]), MOST_LETTERS)
        return ApiError(first["msg"], param=param, code="unsupported_parameter")
    path = brief(".".join(place), MOST_LETTERS)
    if first["type"] == "extra_forbidden":
        known = names if len(place) == 1 else []
        near = difflib.get_close_matches(place[-1][:MOST_LETTERS], known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return ApiError(
            f"unknown field {quoted('.'.join(place))}{hint}", param=path, code="unknown_parameter"
        )
    said = first["msg"].removeprefix("Value error, ")
    return ApiError(f"{path}: {said}" if path else said, param=path or None)
