"""Checks of user input: numbers, texts, lists of them, and dataclasses whose annotations declare the valid values."""

from __future__ import annotations

import ast
import inspect
import math
import operator
import sys
from collections import abc
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from weft.errors import InputError

Check = abc.Callable[[str, Any], object]
"""Raises `InputError` for an invalid value. The first argument is the value's name in the message."""

_CHUNK = 1 << 14
"""Entries of a long list checked in one call of C code. No other thread runs during the call, so it must be short."""

MAX_WORDS = 1 << 16
"""The largest number of words in a list, whatever the engine allows."""


class ValueKind(Enum):
    """The kind of a value. The member's value describes it in messages."""

    INTEGER = "a whole number"
    NUMBER = "a number"
    TEXT = "a text"

    def holds(self, value: object) -> bool:
        """Whether `value` is of this kind. True and False are not numbers."""
        if self is ValueKind.TEXT:
            return isinstance(value, str)
        if isinstance(value, bool):
            return False
        return hasattr(value, "__index__") or (self is ValueKind.NUMBER and isinstance(value, float))

    @property
    def types(self) -> frozenset[type]:
        """Builtin types whose values are all of this kind."""
        return _TYPES[self]


_TYPES: dict[ValueKind, frozenset[type]] = {
    ValueKind.INTEGER: frozenset({int}),
    ValueKind.NUMBER: frozenset({int, float}),
    ValueKind.TEXT: frozenset({str}),
}


@dataclass(frozen=True)
class Range:
    """Numbers of a kind from `lowest` to `highest`, both included. `valid` describes them in messages."""

    kind: ValueKind
    lowest: float
    highest: float
    valid: str

    def __call__(self, name: str, value: Any) -> None:
        """Raise `InputError` unless `value` is in the range."""
        if type(value) is not int and not self.kind.holds(value):
            raise InputError(f"{name} is {value!r}; it must be {self.kind.value}: {self.valid}")
        if not self.lowest <= value <= self.highest:  # the comparison is also false for NaN
            raise InputError(f"{name} is {value}; it must be {self.valid}")


def whole(lowest: int, highest: float = math.inf, valid: str = "") -> Range:
    """Whole numbers from `lowest` to `highest`."""
    return Range(ValueKind.INTEGER, lowest, highest, valid or f"at least {lowest}")


def number(lowest: float, highest: float, valid: str) -> Range:
    """Numbers from `lowest` to `highest`."""
    return Range(ValueKind.NUMBER, lowest, highest, valid)


Count = Annotated[int, whole(1)]
"""A whole number, at least 1."""


class Checked:
    """Base of dataclasses that check their fields on construction, by their annotations:

    - `bool` and `Literal[...]`, and unions of them, allow the values that they name.
    - `Annotated[T, check, ...]` calls each `Check`, such as a `Range`. A text among them is a mark (`set_fields`).
    - With `| None`, None is valid too. Other annotations are not checked.

    A subclass checks conditions over several fields in its own `__post_init__`, after this one.
    """

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(settings: Any, prefix: str = "") -> None:
    """Raise `InputError` for the first field of a dataclass with a value that its annotation does not allow. Messages
    put `prefix` before the field's name."""
    cls: Any = type(settings)
    for name, check in _checks(cls):
        check(prefix + name, getattr(settings, name))


@cache
def ranges(cls: Any) -> dict[str, Range]:
    """The range of each field of a dataclass that has one, by name."""
    return {name: each for name, hint in _hints(cls) for each in _metadata(hint) if isinstance(each, Range)}


def set_fields(settings: Any, mark: str) -> list[str]:
    """The names of a dataclass's fields with the text `mark` in their annotation, as in `Annotated[int, mark]`, and
    another value than the default or None."""
    cls: Any = type(settings)
    return [name for name, default in _marked(cls, mark) if getattr(settings, name) not in (default, None)]


@cache
def _marked(cls: Any, mark: str) -> tuple[tuple[str, Any], ...]:
    defaults = {field.name: field.default for field in fields(cls)}
    return tuple((name, defaults[name]) for name, hint in _hints(cls) if mark in _metadata(hint))


def docstrings(cls: type) -> dict[str, str]:
    """The docstring below each field of a dataclass that has one, by name. Python does not keep these, so they are
    read from the source of the module. The class must be at its top level."""
    module = ast.parse(inspect.getsource(sys.modules[cls.__module__]))
    body = next(
        node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == cls.__name__
    )
    return {
        field.target.id: inspect.cleandoc(doc.value.value)
        for field, doc in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
        if isinstance(doc.value.value, str)
    }


@cache
def _checks(cls: Any) -> tuple[tuple[str, Check], ...]:
    return tuple((name, check) for name, hint in _hints(cls) for check in _checks_of(hint))


def _hints(cls: Any) -> list[tuple[str, Any]]:
    hints = get_type_hints(cls, include_extras=True)
    return [(field.name, hints[field.name]) for field in fields(cls)]


def _arms(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _metadata(hint: Any) -> list[Any]:
    """The arguments of `Annotated` in the members of a union, or in the type itself."""
    return [each for arm in _arms(hint) for each in getattr(arm, "__metadata__", ())]


def _checks_of(hint: Any) -> list[Check]:
    arms = [arm for arm in _arms(hint) if arm is not NoneType]
    checks = [each for each in _metadata(hint) if callable(each)]  # a mark is a text
    choices = [choice for arm in arms for choice in _choices(arm)]
    if choices and all(map(_choices, arms)):
        checks.append(OneOf(choices))
    return [_or_none(check) for check in checks] if NoneType in _arms(hint) else checks


def _choices(arm: Any) -> tuple[object, ...]:
    if arm is bool:
        return True, False
    return get_args(arm) if get_origin(arm) is Literal else ()


class OneOf:
    """The check that a value is one of `choices`."""

    def __init__(self, choices: abc.Iterable[object]) -> None:
        self._choices = tuple(choices)

    def __call__(self, name: str, value: object) -> None:
        if value not in self._choices:
            *others, last = (f'"{each}"' if isinstance(each, str) else repr(each) for each in self._choices)
            raise InputError(f"{name} is {value!r}; it must be {', '.join(others)} or {last}")


def _or_none(check: Check) -> Check:
    def optional(name: str, value: Any) -> None:
        if value is not None:
            check(name, value)

    return optional


def check_entries(name: str, values: object, kind: ValueKind) -> None:
    """Raise `InputError` unless `values` is a sequence, neither text nor bytes, whose entries are all of `kind`."""
    if not isinstance(values, abc.Sequence) or isinstance(values, str | bytes):
        raise InputError(f"{name} is {values!r}; it must be a list, each entry {kind.value}")
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        if set(map(type, chunk)) <= kind.types:
            continue
        for value in chunk:
            if not kind.holds(value):
                raise InputError(f"{name} holds {value!r}; each entry must be {kind.value}")


def read_token_ids(name: str, values: abc.Sequence[int]) -> tuple[int, ...]:
    """The entries of a list of token ids as a tuple. Raises `InputError` unless they are whole numbers, 0 or more."""
    check_entries(name, values, ValueKind.INTEGER)
    for start in range(0, len(values), _CHUNK):
        lowest = min(values[start : start + _CHUNK])
        if lowest < 0:
            raise InputError(f"{name} holds {lowest}; token ids are at least 0")
    return tuple(map(operator.index, values))


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can encode the text: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_words(name: str, words: object) -> None:
    """Raise `InputError` unless `words` are texts or lists of token ids, none of them empty."""
    if isinstance(words, str):
        raise InputError(f"{name} is a text; give a list: [{words!r}]")
    if not isinstance(words, abc.Sequence) or isinstance(words, bytes):
        raise InputError(f"{name} is {words!r}; it must be a list of texts or of lists of token ids")
    if len(words) > MAX_WORDS:
        raise InputError(f"{name} has {len(words)} entries; it may have {MAX_WORDS}")
    for word in words:
        if not isinstance(word, str):
            check_entries(f"an entry of {name}", word, ValueKind.INTEGER)
        elif not is_encodable(word):
            raise InputError(f"{name} holds {word!r}, which is not text that UTF-8 can hold")
        if not word:
            raise InputError(f"{name} holds an empty word, which would always match; leave it out")
