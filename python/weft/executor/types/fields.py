"""Fields that check what they are given: each is declared once, with its default, its bounds, or why it is refused."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import field
from datetime import timedelta
from typing import Any, cast

from weft.core import BOUNDS, CHUNK, Kind, check_entries, check_words
from weft.errors import InputError
from weft.executor.types.checked import Checked

Parser = Callable[[str, Any], Any]


def refused(instead: str, *, default: Any = None) -> Any:
    """A field of TensorRT-LLM's that only its default is taken for; `instead` says why, and what to do."""
    return field(default=default, repr=False, metadata={"refused": instead})


def required(parse: Parser) -> dict[str, Any]:
    """The metadata of a field without default: `field(metadata=required(...))`, which type checkers understand."""
    return {"parse": parse}


def parsed(parse: Parser, *, default: Any, optional: bool = False) -> Any:
    """A field whose value `parse(name, value)` checks and gives back; None passes where it is `optional`."""

    def parse_given(name: str, value: Any) -> Any:
        return None if value is None and optional else parse(name, value)

    return field(default=default, metadata={"parse": parse_given})


def flag(default: bool) -> Any:
    """True or False."""

    def parse(name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise InputError(f"{name} is {value!r}; it must be True or False")
        return value

    return parsed(parse, default=default)


def number(kind: Kind, lowest: float, highest: float, valid: str, *, default: Any) -> Any:
    """A number within bounds, `valid` in words. A default of None makes it optional."""
    return parsed(number_parser(kind, lowest, highest, valid), default=default, optional=default is None)


def number_parser(kind: Kind, lowest: float, highest: float, valid: str) -> Parser:
    """Takes a number of this kind within bounds."""

    def parse(name: str, value: Any) -> int | float:
        if not kind.holds(value):
            raise InputError(f"{name} is {value!r}; it must be {kind.value}: {valid}")
        if not lowest <= value <= highest:
            raise InputError(f"{name} is {value}; it must be {valid}")
        return operator.index(value) if hasattr(value, "__index__") else float(value)

    return parse


def shared(name: str) -> Any:
    """An optional number with the bounds that `weft.core.SamplingParams` has for it."""
    kind, lowest, highest, valid = BOUNDS[name]
    return number(kind, lowest, highest, valid, default=None)


def count(default: int | None, *, lowest: int = 1) -> Any:
    """A whole number that counts something. A default of None makes it optional."""
    return parsed(count_parser(lowest), default=default, optional=default is None)


def count_parser(lowest: int = 1) -> Parser:
    """Takes a whole number, at least `lowest`."""
    return number_parser(Kind.INTEGER, lowest, 2**31 - 1, f"at least {lowest} (and below 2**31)")


def number_of_bytes(default: int | None) -> Any:
    """A number of bytes, at least 1. A default of None makes it optional."""
    return number(Kind.INTEGER, 1, 2**63 - 1, "a number of bytes, at least 1", default=default)


def duration_ms() -> Any:
    """Milliseconds as a number or a timedelta, kept as a number; or None."""

    def parse(name: str, value: Any) -> float:
        if isinstance(value, timedelta):
            value = value / timedelta(milliseconds=1)
        if not (Kind.NUMBER.holds(value) and 0 <= value < math.inf):
            raise InputError(f"{name} is {value!r}; it must be milliseconds, at least 0, or a timedelta")
        return float(value)

    return parsed(parse, default=None, optional=True)


def seconds(milliseconds: float | timedelta | None) -> float | None:
    """What a field of `duration_ms` holds, in seconds."""
    return None if milliseconds is None else cast(float, milliseconds) / 1000


def text() -> Any:
    """An optional text that is not empty."""
    return parsed(parse_text, default=None, optional=True)


def parse_text(name: str, value: Any) -> str:
    """Takes a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InputError(f"{name} is {value!r}; it must be a text that is not empty")
    return value


def instance(cls: type, *, default: Any) -> Any:
    """An object of class `cls` (a member, if it is an enum). A default of None makes it optional."""
    return parsed(instance_parser(cls), default=default, optional=default is None)


def settings(cls: type[Checked]) -> Any:
    """Settings of class `cls`. Who is given none gets its own, all default."""
    return field(default_factory=cls().snapshot, metadata=required(instance_parser(cls)))


def instance_parser(cls: type) -> Parser:
    """Takes an object of class `cls`."""

    def parse(name: str, value: Any) -> Any:
        if not isinstance(value, cls):
            members = getattr(cls, "__members__", None)
            right = f"one of {cls.__name__}: {', '.join(members)}" if members else f"a {cls.__name__}"
            raise InputError(f"{name} is {value!r}; it must be {right}")
        return value

    return parse


def instances(cls: type) -> Any:
    """A list of objects of class `cls`, kept as a tuple; None is an empty one."""

    def parse(name: str, value: Any) -> tuple[Any, ...]:
        if value is None:
            return ()
        if not isinstance(value, Sequence) or not all(isinstance(entry, cls) for entry in value):
            raise InputError(f"{name} is {value!r}; it must be a list of {cls.__name__}")
        return tuple(value)

    return parsed(parse, default=())


def function() -> Any:
    """Something that can be called, or None."""

    def parse(name: str, value: Any) -> Any:
        if not callable(value):
            raise InputError(f"{name} is {value!r}; it must be a function")
        return value

    return parsed(parse, default=None, optional=True)


MAX_TOKENS = 1 << 22
"""A list of token ids may have so many: more than any engine takes."""
READ_AT_ONCE = 1 << 16
"""A list of more token ids is read when the executor has found that it is not too long."""


def parse_tokens(name: str, value: Any) -> tuple[int, ...]:
    """Takes a list of token ids that is not empty. Of one that is long only the length is looked at; `read_tokens`
    does the rest."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise InputError(f"{name} is {value!r}; it must be a list, each entry {Kind.INTEGER.value}")
    if not value:
        raise InputError(f"{name} is empty; give at least one token id")
    if len(value) > MAX_TOKENS:
        raise InputError(f"{name} has {len(value)} token ids; it may have {MAX_TOKENS}")
    return tuple(value) if len(value) > READ_AT_ONCE else read_tokens(name, value)


def read_tokens(name: str, value: Sequence[Any]) -> tuple[int, ...]:
    """What `parse_tokens` took, read: whole numbers, at least 0. Raises `InputError`."""
    check_entries(name, value, Kind.INTEGER)
    lowest = min(min(value[start : start + CHUNK]) for start in range(0, len(value), CHUNK))
    if lowest < 0:
        raise InputError(f"{name} holds {lowest}; token ids are at least 0")
    return tuple(map(operator.index, value))


def words() -> Any:
    """Texts and lists of token ids, none of them empty, kept as tuples."""

    def parse(name: str, value: Any) -> tuple[str | tuple[int, ...], ...]:
        check_words(name, value)
        return tuple(
            word if isinstance(word, str) else read_tokens(f"an entry of {name}", word) for word in value
        )

    return parsed(parse, default=None, optional=True)
