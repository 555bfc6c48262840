"""What a value that users give may be: numbers, texts, lists of them."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from enum import Enum

from weft.errors import InputError

_CHUNK = 1 << 14
"""Entries of a long list that are looked at without letting other threads run."""

MAX_WORDS = 1 << 16
"""A list of words may have so many, of an engine that allows it."""


class Kind(Enum):
    """What a parameter may be; the value is how messages say it."""

    INTEGER = "a whole number"
    NUMBER = "a number"
    TEXT = "a text"

    def holds(self, value: object) -> bool:
        """Whether `value` is of this kind. True and False are no numbers."""
        if self is Kind.TEXT:
            return isinstance(value, str)
        if isinstance(value, bool):
            return False
        return hasattr(value, "__index__") or (self is Kind.NUMBER and isinstance(value, float))

    @property
    def types(self) -> frozenset[type]:
        """Types whose values are all of this kind."""
        return _TYPES[self]


_TYPES: dict[Kind, frozenset[type]] = {
    Kind.INTEGER: frozenset({int}),
    Kind.NUMBER: frozenset({int, float}),
    Kind.TEXT: frozenset({str}),
}


def check_entries(name: str, values: object, kind: Kind) -> None:
    """Raise `InputError` unless `values` is a sequence (no text, no bytes) whose entries are all of `kind`."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise InputError(f"{name} is {values!r}; it must be a list, each entry {kind.value}")
    for start in range(0, len(values), _CHUNK):
        chunk = values[start : start + _CHUNK]
        if set(map(type, chunk)) <= kind.types:
            continue
        for value in chunk:
            if not kind.holds(value):
                raise InputError(f"{name} holds {value!r}; each entry must be {kind.value}")


def read_token_ids(name: str, values: Sequence[int]) -> tuple[int, ...]:
    """The entries of a list of token ids. Raises `InputError` unless they are whole numbers, 0 or more."""
    check_entries(name, values, Kind.INTEGER)
    for start in range(0, len(values), _CHUNK):
        lowest = min(values[start : start + _CHUNK])
        if lowest < 0:
            raise InputError(f"{name} holds {lowest}; token ids are at least 0")
    return tuple(map(operator.index, values))


def is_encodable(text: str) -> bool:
    """Whether UTF-8 can hold it: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_words(name: str, words: object) -> None:
    """Raise `InputError` unless `words` are texts or lists of token ids, none of them empty."""
    if isinstance(words, str):
        raise InputError(f"{name} is a text; give a list: [{words!r}]")
    if not isinstance(words, Sequence) or isinstance(words, bytes):
        raise InputError(f"{name} is {words!r}; it must be a list of texts or of lists of token ids")
    if len(words) > MAX_WORDS:
        raise InputError(f"{name} has {len(words)} entries; it may have {MAX_WORDS}")
    for word in words:
        if not isinstance(word, str):
            check_entries(f"an entry of {name}", word, Kind.INTEGER)
        elif not is_encodable(word):
            raise InputError(f"{name} holds {word!r}, which is not text that UTF-8 can hold")
        if not word:
            raise InputError(f"{name} holds an empty word, which would always match; leave it out")
