"""Finds the markers of a format in text that is still to grow."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from weft.parsing.spelling import BLANK, DIGITS, Spelling

T = TypeVar("T")
MAX_BLANKS, MAX_DIGITS = 8, 1000
"""As many a marker may hold in a row: what may still become one is held back."""
OPEN: Literal["open"] = "open"
"""Whether a marker stands here depends on what follows."""


@dataclass
class _Node(Generic[T]):
    """Where a walk along markers has come to: what may come next, and whose markers end here."""

    after: dict[str, _Node[T]] = field(default_factory=dict)
    takes_blanks: bool = False
    takes_digits: bool = False
    ends: list[tuple[Spelling, T]] = field(default_factory=list)


class _Walk(Generic[T]):
    """One walk along markers: how far it came, the best marker on its way, and what it took at its last node."""

    def __init__(self, node: _Node[T]) -> None:
        self.node = node
        self.length = 0
        self.best: Found[T] | None = None
        self.blanks = 0
        self._digits = 0

    @property
    def goes_on(self) -> bool:
        """Whether some marker is longer."""
        return bool(self.node.after) or self.node.takes_digits

    def take(self, char: str) -> bool:
        """Go on by a character; false if no marker has it here."""
        is_digit = char.isascii() and char.isdecimal()
        if char in self.node.after or (is_digit and DIGITS in self.node.after):
            self.node = self.node.after[char if char in self.node.after else DIGITS]
            self.blanks, self._digits = 0, int(is_digit)
        elif is_digit and self.node.takes_digits and self._digits < MAX_DIGITS:
            self._digits += 1
        elif char.isspace() and self.node.takes_blanks and self.blanks < MAX_BLANKS:
            self.blanks += 1
        else:
            return False
        self.length += 1
        return True


@dataclass(frozen=True)
class Found(Generic[T]):
    """A marker that was found: its length, and what all markers of this spelling stand for."""

    length: int
    meanings: tuple[T, ...]


class Markers(Generic[T]):
    """Spellings and what each stands for. Of several that begin at one place the longest counts.

    Where that is open, it is asked again for the same place, with more text: what was looked at is not looked at again.
    """

    def __init__(self, spellings: Iterable[tuple[Spelling, T]]) -> None:
        self._root: _Node[T] = _Node()
        self._open: _Walk[T] | None = None
        for spelling, meaning in spellings:
            self._add(spelling, meaning)
        firsts = "".join(re.escape(atom) for atom in self._root.after)
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def next(self, text: str, start: int) -> int:
        """The first place from `start` on where one may begin; the text's end if there is none."""
        found = self._first.search(text, start) if self._first else None
        return len(text) if found is None else found.start()

    def at(self, text: str, start: int, is_end: bool) -> Found[T] | Literal["open"] | None:
        """The marker that begins at `start`, if one does. `is_end`: no text follows."""
        walk, self._open = self._open or _Walk(self._root), None
        found = _walked(walk, text, start, is_end)
        if found == OPEN:
            self._open = walk
        return found

    def _add(self, spelling: Spelling, meaning: T) -> None:
        node = self._root
        for atom in spelling.atoms:
            if atom == BLANK:
                node.takes_blanks = True
                continue
            node = node.after.setdefault(atom, _Node())
            node.takes_digits = node.takes_digits or atom == DIGITS
        node.ends.append((spelling, meaning))


def _walked(walk: _Walk[T], text: str, start: int, is_end: bool) -> Found[T] | Literal["open"] | None:
    """Walk on through the text from `start` on, as far as it goes."""
    while True:
        at = start + walk.length
        if walk.node.ends and not walk.blanks:
            meanings = _counting(walk.node, text, at, is_end)
            if meanings is None:
                return OPEN
            walk.best = Found(walk.length, meanings) if meanings else walk.best
        if at == len(text):
            return OPEN if walk.goes_on and not is_end else walk.best
        if not walk.take(text[at]):
            return walk.best


def _counting(node: _Node[T], text: str, end: int, is_end: bool) -> tuple[T, ...] | None:
    """What the markers stand for that end here, as far as what follows lets them count; None while that is open."""
    counts = [_counts(spelling, text, end, is_end) for spelling, _ in node.ends]
    if None in counts:
        return None
    return tuple(meaning for (_, meaning), counted in zip(node.ends, counts, strict=True) if counted)


def _counts(spelling: Spelling, text: str, end: int, is_end: bool) -> bool | None:
    """Whether what follows a marker lets it count; None if that is still to come."""
    if not spelling.wanted and not spelling.unwanted:
        return True
    at = end
    while spelling.wanted and at < min(len(text), end + MAX_BLANKS) and text[at].isspace():
        at += 1
    if at == len(text):
        return True if is_end else None
    return text[at] in spelling.wanted if spelling.wanted else text[at] not in spelling.unwanted
