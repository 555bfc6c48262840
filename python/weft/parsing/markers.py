"""Finds the markers of a format in streaming text.

A `Spelling` is the pattern of a marker. It allows some variation in whitespace, because models add or omit it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from weft.parsing.json_text import STARTS

T = TypeVar("T")
MAX_BLANKS, MAX_DIGITS = 8, 1000
"""The largest numbers of repeated whitespace and digits in one marker. The parser holds back text that may become a
marker, so a marker's length must be bounded."""
OPEN: Literal["open"] = "open"
"""The result of a match that needs more text to decide."""


@dataclass
class _Node(Generic[T]):
    """A node of the trie of markers: the atoms that may follow, and the markers that end here."""

    after: dict[str, _Node[T]] = field(default_factory=dict)
    takes_blanks: bool = False
    takes_digits: bool = False
    ends: list[tuple[Spelling, T]] = field(default_factory=list)


class _Walk(Generic[T]):
    """The progress of a match through the trie: the length of the text so far, the longest marker so far, and the
    numbers of repeated blanks and digits at the current node."""

    def __init__(self, node: _Node[T]) -> None:
        self.node = node
        self.length = 0
        self.best: Found[T] | None = None
        self.blanks = 0
        self._digits = 0

    @property
    def goes_on(self) -> bool:
        """Whether the trie has a longer marker from here."""
        return bool(self.node.after) or self.node.takes_digits

    def take(self, char: str) -> bool:
        """Advance by one character. Returns False if no marker allows it."""
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
    """A marker found in the text: its length, and the meanings of all markers with this spelling."""

    length: int
    meanings: tuple[T, ...]


class Markers(Generic[T]):
    """Matches spellings and returns their meanings. If several markers match at one position, the longest wins.

    If `at` returns `OPEN`, the caller must call it again for the same position with more text. The match then resumes
    where it stopped.
    """

    def __init__(self, spellings: Iterable[tuple[Spelling, T]]) -> None:
        self._root: _Node[T] = _Node()
        self._open: _Walk[T] | None = None
        for spelling, meaning in spellings:
            self._add(spelling, meaning)
        firsts = "".join(re.escape(atom) for atom in self._root.after)
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def next(self, text: str, start: int) -> int:
        """The first position at or after `start` where a marker may begin, or the end of the text."""
        found = self._first.search(text, start) if self._first else None
        return len(text) if found is None else found.start()

    def at(self, text: str, start: int, is_end: bool) -> Found[T] | Literal["open"] | None:
        """The marker at position `start`; None if there is none, or `OPEN` if more text is needed. With `is_end` no
        text follows."""
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
    """Continue a walk that began at position `start`. Returns the same as `Markers.at`."""
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
    """The meanings of the markers that match here: they end at `node`, and the character after them is allowed. None if
    that character is needed and has not come yet."""
    counts = [_counts(spelling, text, end, is_end) for spelling, _ in node.ends]
    if None in counts:
        return None
    return tuple(meaning for (_, meaning), counted in zip(node.ends, counts, strict=True) if counted)


def _counts(spelling: Spelling, text: str, end: int, is_end: bool) -> bool | None:
    """Whether the character after a marker allows it; None if that character is needed and has not come yet."""
    if not spelling.wanted and not spelling.unwanted:
        return True
    at = end
    while spelling.wanted and at < min(len(text), end + MAX_BLANKS) and text[at].isspace():
        at += 1
    if at == len(text):
        return True if is_end else None
    return text[at] in spelling.wanted if spelling.wanted else text[at] not in spelling.unwanted


BLANK, DIGITS = r"\s", r"\d"
"""Atoms of a spelling: optional whitespace; one or more digits."""
NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-")
"""Characters that function names may have."""
_LAYOUT = re.compile(r"\s*\n\s*|(?<=>)(?=<)")
_JSON = re.compile(r'"[^"]*"|\s+|[{}:,]|[^"\s{}:,]+|"')


@dataclass(frozen=True)
class Spelling:
    """The pattern of a marker. `atoms` are characters, `BLANK` or `DIGITS`, without outer whitespace. `after` is the
    trailing whitespace.

    If `wanted` is not empty, one of its characters must follow the marker, possibly after whitespace. Otherwise, no
    character of `unwanted` may follow it.
    """

    atoms: tuple[str, ...]
    after: str = ""
    wanted: frozenset[str] = frozenset()
    unwanted: frozenset[str] = frozenset()


def spelled(literal: str) -> Spelling:
    """The spelling for a literal of a format. It has no atoms if the literal is only whitespace."""
    core = literal.strip()
    if not core:
        return Spelling((), literal)
    after = literal[len(literal.rstrip()) :]
    start = core.find('{"')
    if core.startswith("}"):
        start = 0
    if start < 0:
        return Spelling(_plain(core), after)
    return Spelling(_tidied([*_plain(core[:start]), *_json(core[start:])]), after)


def header(parts: list[str | None], *, is_json: bool) -> Spelling:
    """The spelling of a call's header. `parts` are literals, and None for digits.

    With `is_json`, a JSON value must follow the header. Otherwise, if the header ends with a character of a function
    name, no such character may follow.
    """
    atoms: list[str] = []
    for part in parts:
        atoms += [DIGITS] if part is None else _inside(part)
    found = _tidied(atoms)
    if is_json:
        return Spelling(found, wanted=STARTS)
    return Spelling(found, unwanted=NAME if found and found[-1] in NAME else frozenset())


def _inside(literal: str) -> list[str]:
    """The atoms for a literal inside a header, whose outer whitespace becomes `BLANK`."""
    found = spelled(literal)
    return [*([BLANK] if literal[:1].isspace() else []), *found.atoms, *([BLANK] if found.after else [])]


def _plain(text: str) -> tuple[str, ...]:
    """The atoms for plain text. Line breaks become `BLANK`, and `BLANK` comes between adjacent tags. Other whitespace
    must match exactly."""
    atoms: list[str] = []
    at = 0
    for found in _LAYOUT.finditer(text):
        atoms += [*text[at : found.start()], BLANK]
        at = found.end()
    return (*atoms, *text[at:])


def _json(text: str) -> list[str]:
    """The atoms for JSON text, with `BLANK` between JSON tokens."""
    atoms: list[str] = []
    for found in _JSON.finditer(text):
        piece = found[0]
        if piece.isspace():
            atoms.append(BLANK)
        elif piece in "{}:,":
            atoms += [BLANK, piece, BLANK]
        else:
            atoms += _plain(piece) if not piece.startswith('"') else [*piece]
    return atoms


def _tidied(atoms: list[str]) -> tuple[str, ...]:
    """Merge repeated `BLANK`s, and drop them at both ends."""
    kept: list[str] = []
    for atom in atoms:
        if atom != BLANK or (kept and kept[-1] != BLANK):
            kept.append(atom)
    return tuple(kept[:-1] if kept and kept[-1] == BLANK else kept)
