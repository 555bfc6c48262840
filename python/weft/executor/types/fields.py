"""What fields hold: numbers within bounds, durations, token ids, words, tensors, functions."""

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

from weft.core import Kind, SamplingParams, check_words, read_token_ids
from weft.core.values import Range, ranges
from weft.errors import InputError

T = TypeVar("T")


def wanted(words: str) -> PydanticCustomError:
    """The error of a value that must be what `words` say; `input_error` names the field, and the value."""
    return PydanticCustomError("wanted", "{words}", {"words": words})


@dataclass(frozen=True)
class Wanted:
    """What a value must be, in words, where the type says too little."""

    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        given = core_schema.custom_error_schema(schema, "wanted", custom_error_message=self.words)
        return core_schema.json_or_python_schema(schema, given)


class Within(Range):
    """A `Range` as pydantic's type of a field."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def parse(self, value: Any) -> int | float:
        """The number as Python's own."""
        if not self.kind.holds(value):
            raise wanted(f"{self.kind.value}: {self.valid}")
        if not self.lowest <= value <= self.highest:
            raise wanted(self.valid)
        return operator.index(value) if hasattr(value, "__index__") else float(value)


def count_from(lowest: int) -> Within:
    """A whole number, at least `lowest`."""
    return Within(Kind.INTEGER, lowest, 2**31 - 1, f"at least {lowest} (and below 2**31)")


def shared(name: str) -> Within:
    """The range that `weft.SamplingParams` has for a number of this name."""
    bounds = ranges(SamplingParams)[name]
    return Within(bounds.kind, bounds.lowest, bounds.highest, bounds.valid)


Count = Annotated[int, count_from(1)]
NotNegative = Annotated[int, count_from(0)]
Bytes = Annotated[int, Within(Kind.INTEGER, 1, 2**63 - 1, "a number of bytes, at least 1")]
Share = Annotated[float, Within(Kind.NUMBER, 0, 1, "0 to 1")]


def _duration(value: Any) -> timedelta:
    if not isinstance(value, timedelta):
        is_number = Kind.NUMBER.holds(value) and 0 <= value < math.inf
        value = timedelta(milliseconds=min(float(value), MAX_MILLISECONDS)) if is_number else timedelta(-1)
    duration: timedelta = value
    if duration < timedelta(0):
        raise wanted("milliseconds, at least 0, or a timedelta")
    return duration


MAX_MILLISECONDS = 1e14
"""Some three thousand years: a longer time is as good as none."""

_AS_MILLISECONDS = PlainSerializer(lambda value: value / timedelta(milliseconds=1))

Milliseconds = Annotated[timedelta | float, PlainValidator(_duration), _AS_MILLISECONDS]
"""A timedelta, or milliseconds as a number; kept as a timedelta, and milliseconds in plain data."""

Moment = Annotated[timedelta, PlainValidator(_duration), _AS_MILLISECONDS]
"""A moment as the time since a clock began, milliseconds in plain data; timedelta(0) for what did not happen."""


def seconds(duration: timedelta | float | None) -> float | None:
    """What a field of `Milliseconds` holds, in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else None


Text = Annotated[str, Field(min_length=1)]


Several = Annotated[Sequence[T], AfterValidator(list)]
"""A list, kept as a list of its own."""


class ByName:
    """An enum whose members stand in plain data by their names."""

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
    """A tensor from plain data; anything else as it is."""
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
"""A list of token ids may have so many: more than any engine takes."""
READ_AT_ONCE = 1 << 16
"""A list of more token ids is read when the executor has found that it is not too long."""


def as_list(value: Any) -> Any:
    """The numbers of a torch tensor or numpy array of one dimension as a list; anything else as it is."""
    is_array = isinstance(value, torch.Tensor) or hasattr(value, "__array_interface__")
    return value.tolist() if is_array and value.ndim == 1 else value


def _tokens(value: Any, info: ValidationInfo) -> list[int]:
    """Takes a list of token ids, or an array of them, that is not empty. Of one that is long only the length is looked
    at; `read_token_ids` does the rest."""
    name, value = str(info.field_name), as_list(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise wanted(f"a list, each entry {Kind.INTEGER.value}")
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
"""Texts and lists of token ids, none of them empty, kept as lists."""
