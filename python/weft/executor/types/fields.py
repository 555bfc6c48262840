"""Field types of the settings: numbers within bounds, durations, token ids, words, tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import torch
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from weft.core import SamplingParams, ValueKind, check_words, read_token_ids
from weft.core.values import Range, ranges
from weft.errors import InputError

T = TypeVar("T")


def wanted(words: str) -> PydanticCustomError:
    """The error for an invalid value. `words` describe the valid ones; `input_error` adds the field and the value."""
    return PydanticCustomError("wanted", "{words}", {"words": words})


@dataclass(frozen=True)
class Wanted:
    """Describes the valid values of a field for error messages, if pydantic's description says too little."""

    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        given = core_schema.custom_error_schema(schema, "wanted", custom_error_message=self.words)
        return core_schema.json_or_python_schema(schema, given)


class Within(Range):
    """A `Range` as a field type of pydantic."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def parse(self, value: Any) -> int | float:
        """Check a number and convert it to Python's int or float. Raises the error of `wanted` for any other value."""
        if not self.kind.holds(value):
            raise wanted(f"{self.kind.value}: {self.valid}")
        if not self.lowest <= value <= self.highest:
            raise wanted(self.valid)
        return operator.index(value) if hasattr(value, "__index__") else float(value)


def count_from(lowest: int) -> Within:
    """The range of whole numbers from `lowest` to 2**31 - 1."""
    return Within(ValueKind.INTEGER, lowest, 2**31 - 1, f"at least {lowest} (and below 2**31)")


def shared(name: str) -> Within:
    """The range of the field of this name in `weft.SamplingParams`."""
    bounds = ranges(SamplingParams)[name]
    return Within(bounds.kind, bounds.lowest, bounds.highest, bounds.valid)


Count = Annotated[int, count_from(1)]
NotNegative = Annotated[int, count_from(0)]
Bytes = Annotated[int, Within(ValueKind.INTEGER, 1, 2**63 - 1, "a number of bytes, at least 1")]
Share = Annotated[float, Within(ValueKind.NUMBER, 0, 1, "0 to 1")]


def _duration(value: Any) -> timedelta:
    if not isinstance(value, timedelta):
        is_number = ValueKind.NUMBER.holds(value) and 0 <= value < math.inf
        value = timedelta(milliseconds=min(float(value), MAX_MILLISECONDS)) if is_number else timedelta(-1)
    duration: timedelta = value
    if duration < timedelta(0):
        raise wanted("milliseconds, at least 0, or a timedelta")
    return duration


MAX_MILLISECONDS = 1e14
"""About three thousand years. Longer durations are cut to this, because a timedelta may not hold them."""

_AS_MILLISECONDS = PlainSerializer(lambda value: value / timedelta(milliseconds=1))

Milliseconds = Annotated[timedelta | float, PlainValidator(_duration), _AS_MILLISECONDS]
"""A timedelta, or a number of milliseconds. The field keeps a timedelta; plain data has milliseconds."""

Moment = Annotated[timedelta, PlainValidator(_duration), _AS_MILLISECONDS]
"""The time of an event since the clock's start; timedelta(0) if it has not happened. Plain data has milliseconds."""


def seconds(duration: timedelta | float | None) -> float | None:
    """The value of a `Milliseconds` field in seconds; None for None."""
    return duration.total_seconds() if isinstance(duration, timedelta) else None


Text = Annotated[str, Field(min_length=1)]


Several = Annotated[Sequence[T], AfterValidator(list)]
"""A list. The field keeps a copy."""


class ByName:
    """Base of enums whose members are written to plain data by name."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members: Mapping[str, Any] = source.__members__
        words = f"one of {source.__name__}: {', '.join(members)}"
        named = core_schema.literal_schema([*members])
        either = core_schema.json_or_python_schema(
            core_schema.no_info_after_validator_function(members.__getitem__, named),
            core_schema.is_instance_schema(source),
            serialization=core_schema.plain_serializer_function_ser_schema(operator.attrgetter("name")),
        )
        return core_schema.custom_error_schema(either, "wanted", custom_error_message=words)


def read_tensor(value: Any, info: ValidationInfo) -> Any:
    """Read a tensor from plain data; return any other value unchanged. Raises `InputError` for invalid plain data."""
    if info.mode != "json" or not isinstance(value, Mapping):
        return value
    dtype = getattr(torch, str(value.get("dtype")), None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(
            f"a tensor's dtype is {value.get('dtype')!r}; it must be one of torch's, such as 'float32'"
        )
    try:
        return torch.tensor(value.get("values"), dtype=dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"a tensor's values are no numbers, or do not fit: {error}") from None


def _plain_tensor(value: torch.Tensor) -> dict[str, Any]:
    return {"dtype": str(value.dtype).removeprefix("torch."), "values": value.tolist()}


Tensor = Annotated[torch.Tensor, BeforeValidator(read_tensor), PlainSerializer(_plain_tensor)]

MAX_TOKENS = 1 << 22
"""The largest number of ids in a list of token ids: more than any engine takes."""
READ_AT_ONCE = 1 << 16
"""The entries of longer lists of token ids are checked only after the executor has checked the length."""


def as_list(value: Any) -> Any:
    """Convert a torch tensor or numpy array of one dimension to a list; return any other value unchanged."""
    is_array = isinstance(value, torch.Tensor) or hasattr(value, "__array_interface__")
    return value.tolist() if is_array and value.ndim == 1 else value


def _tokens(value: Any, info: ValidationInfo) -> list[int]:
    """Read a list or array of at least one token id. In a list longer than `READ_AT_ONCE` the ids are not checked
    here."""
    name, value = str(info.field_name), as_list(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise wanted(f"a list, each entry {ValueKind.INTEGER.value}")
    if not value:
        raise InputError(f"{name} is empty; give at least one token id")
    if len(value) > MAX_TOKENS:
        raise InputError(f"{name} has {len(value)} token ids; it may have {MAX_TOKENS}")
    return list(value) if len(value) > READ_AT_ONCE else list(read_token_ids(name, value))


def _words(value: Any, info: ValidationInfo) -> list[str | list[int]]:
    name = str(info.field_name)
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = [as_list(word) for word in value]
    check_words(name, value)
    return [
        word if isinstance(word, str) else list(read_token_ids(f"an entry of {name}", word)) for word in value
    ]


Tokens = Annotated[Sequence[int], PlainValidator(_tokens)]
Words = Annotated[Sequence[str | Sequence[int]], PlainValidator(_words)]
"""A list of words, each a text or a list of token ids, none of them empty. The field keeps copies."""
