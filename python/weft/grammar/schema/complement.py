"""A pattern for the texts in which another one is not found, by the automaton of these texts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from re import _constants  # type: ignore[attr-defined]  # what `re` compiles from; its names have no types
from typing import Any

from weft.grammar.schema.characters import (
    ASCII_SPACES,
    DIGITS,
    MAX_CODE,
    SPACES,
    WORDS,
    Ranges,
    outside,
    spelled,
)

MAX_WRITTEN = 3_000


def complement(parsed: Any) -> str | None:
    """A pattern for all other texts than those in which what `re` parsed is found; None where it would be too large."""
    try:
        return _Written(*Automaton(parsed).others()).pattern()
    except Beyond:
        return None


class _Written:
    """A pattern for an automaton: its states are taken away one after another, the ways through them written down."""

    def __init__(self, states: list[State], ends: set[int]) -> None:
        last, first = len(states), len(states) + 1
        self._ways: dict[tuple[int, int], str] = {(first, 0): ""}
        self._ways |= {(number, last): "" for number in ends}
        for number, leads in enumerate(states):
            self._ways |= {(number, to): spelled(letters) for to, letters in leads.items()}
        self._last, self._first = last, first
        self._left = set(range(len(states)))

    def pattern(self) -> str:
        """Raises `Beyond` where it would be too long, or where there is no such text."""
        while self._left:
            self._take(min(self._left, key=self._cost))
        way = self._ways.get((self._first, self._last))
        if way is None or len(way) > MAX_WRITTEN:
            raise Beyond
        return f"^(?:{way})$"

    def _around(self, state: int) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        into = [(a, way) for (a, b), way in self._ways.items() if b == state and a != state]
        out = [(b, way) for (a, b), way in self._ways.items() if a == state and b != state]
        return into, out

    def _cost(self, state: int) -> int:
        into, out = self._around(state)
        before, after = sum(len(way) for _, way in into), sum(len(way) for _, way in out)
        loop = len(self._ways.get((state, state), ""))
        return before * len(out) + after * len(into) + loop * len(into) * len(out)

    def _take(self, state: int) -> None:
        into, out = self._around(state)
        loop = self._ways.get((state, state))
        again = f"{_group(loop)}*" if loop else ""
        for before, first in into:
            for after, second in out:
                way = f"{_side(first)}{again}{_side(second)}"
                known = self._ways.get((before, after))
                self._ways[before, after] = way if known is None else f"{known}|{way}"
                if len(self._ways[before, after]) > MAX_WRITTEN:
                    raise Beyond
        self._ways = {key: way for key, way in self._ways.items() if state not in key}
        self._left.remove(state)


def _side(way: str) -> str:
    return f"(?:{way})" if _has_choice(way) else way


def _group(way: str) -> str:
    is_one = len(way) == 1 or (way[:1] == "[" and way.find("]") == len(way) - 1 and "\\]" not in way)
    return way if is_one else f"(?:{way})"


def _has_choice(way: str) -> bool:
    depth, i = 0, 0
    while i < len(way):
        if way[i] == "\\":
            i += 1
        elif way[i] in "([":
            depth += 1
        elif way[i] in ")]":
            depth -= 1
        elif way[i] == "|" and depth == 0:
            return True
        i += 1
    return False


MAX_PLACES = 400
MAX_STATES = 40

State = dict[int, Ranges]
"""The characters that lead from a state to others, by their numbers."""


class Beyond(Exception):
    """A pattern has parts of which there is no automaton here, or too many."""


CATEGORIES = {
    _constants.CATEGORY_DIGIT: DIGITS,
    _constants.CATEGORY_SPACE: SPACES,
    _constants.CATEGORY_WORD: WORDS,
    _constants.CATEGORY_NOT_DIGIT: outside(DIGITS),
    _constants.CATEGORY_NOT_SPACE: outside(ASCII_SPACES),  # by all that is a space to some
    _constants.CATEGORY_NOT_WORD: outside(WORDS),
}
NEWLINE = outside([(10, 10)])


def _characters(kind: Any, content: Any) -> Ranges | None:
    """The characters that a part of a pattern stands for, where it stands for one."""
    if kind is _constants.LITERAL:
        return [(content, content)]
    if kind is _constants.NOT_LITERAL:
        return outside([(content, content)])
    if kind is _constants.ANY:
        return NEWLINE
    if kind is not _constants.IN:
        return None
    found: Ranges = []
    for inner, value in content:
        if inner is _constants.LITERAL:
            found.append((value, value))
        elif inner is _constants.RANGE:
            found.append(value)
        elif inner is _constants.CATEGORY:
            found += CATEGORIES[value]
        elif inner is not _constants.NEGATE:
            raise Beyond
    return outside(found) if content[0][0] is _constants.NEGATE else found


class Automaton:
    """Places between the parts of a pattern: from each, characters lead to others, or nothing does."""

    def __init__(self, parsed: Any) -> None:
        self._by: list[list[tuple[Ranges, int]]] = []
        self._free: list[list[int]] = []
        start, self._end = self._place(), self._place()
        self._start = start
        for branch in _branches(list(parsed)):
            begin, end = self._place(), self._place()
            self._free[start].append(begin)
            self._free[end].append(self._end)
            parts = list(branch)
            at_begin = bool(parts) and parts[0] == (_constants.AT, _constants.AT_BEGINNING)
            at_end = bool(parts) and parts[-1] == (_constants.AT, _constants.AT_END)
            parts = parts[at_begin : len(parts) - at_end]
            self._add(parts, begin, end)
            for place, is_fixed in ((begin, at_begin), (end, at_end)):
                if not is_fixed:
                    self._by[place].append(([(0, MAX_CODE)], place))

    def _place(self) -> int:
        if len(self._by) >= MAX_PLACES:
            raise Beyond
        self._by.append([])
        self._free.append([])
        return len(self._by) - 1

    def _add(self, parts: Iterable[tuple[Any, Any]], begin: int, end: int) -> None:
        at = begin
        for kind, content in parts:
            following = self._place()
            self._part(kind, content, at, following)
            at = following
        self._free[at].append(end)

    def _part(self, kind: Any, content: Any, begin: int, end: int) -> None:
        allowed = _characters(kind, content)
        if allowed is not None:
            self._by[begin].append((allowed, end))
        elif kind is _constants.BRANCH:
            for branch in content[1]:
                self._add(branch, begin, end)
        elif kind is _constants.SUBPATTERN:
            self._add(content[-1], begin, end)
        elif kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            least, most, repeated = content
            self._repeated(least, most, repeated, begin, end)
        else:
            raise Beyond

    def _repeated(self, least: int, most: Any, parts: Any, begin: int, end: int) -> None:
        at = begin
        for _ in range(least):
            following = self._place()
            self._add(parts, at, following)
            at = following
        if most is _constants.MAXREPEAT:
            loop, again = self._place(), self._place()
            self._free[at].append(loop)
            self._add(parts, loop, again)
            self._free[again].append(loop)
            self._free[loop].append(end)
            return
        for _ in range(most - least):
            self._free[at].append(end)
            following = self._place()
            self._add(parts, at, following)
            at = following
        self._free[at].append(end)

    def _closed(self, places: Iterable[int]) -> frozenset[int]:
        found = set(places)
        pending = list(found)
        while pending:
            for place in self._free[pending.pop()]:
                if place not in found:
                    found.add(place)
                    pending.append(place)
        return frozenset(found)

    def others(self) -> tuple[list[State], set[int]]:
        """States, the first one first, with the characters that lead from each to others; and those in which a text
        may end that the pattern is not found in."""
        edges = {0, MAX_CODE + 1}
        for leading in self._by:
            for ranges, _ in leading:
                edges |= {edge for low, high in ranges for edge in (low, high + 1)}
        bounds = sorted(edges)
        letters = [(low, high - 1) for low, high in pairwise(bounds)]
        numbers = {self._closed([self._start]): 0}
        states: list[State] = []
        ends: set[int] = set()
        queue = list(numbers)
        for places in queue:
            number = numbers[places]
            if self._end not in places:
                ends.add(number)
            leads: State = {}
            for letter in letters:
                reached = self._closed(
                    to
                    for place in places
                    for ranges, to in self._by[place]
                    if any(low <= letter[0] <= high for low, high in ranges)
                )
                if reached not in numbers:
                    if len(numbers) >= MAX_STATES * 4:
                        raise Beyond
                    numbers[reached] = len(numbers)
                    queue.append(reached)
                leads.setdefault(numbers[reached], []).append(letter)
            states.append(leads)
        return _least(states, ends)


def _branches(parts: list[tuple[Any, Any]]) -> list[Any]:
    """The alternatives of a pattern, which may have anchors of their own."""
    if len(parts) == 1 and parts[0][0] is _constants.BRANCH:
        return list(parts[0][1][1])
    return [parts]


def _least(states: list[State], ends: set[int]) -> tuple[list[State], set[int]]:
    """The same with as few states as can be, without those from which no end is reached."""
    group = [number in ends for number in range(len(states))]
    kinds: list[int] = [int(one) for one in group]
    while True:
        keys = [
            (
                kinds[number],
                frozenset((letter, kinds[to]) for to, letters in leads.items() for letter in letters),
            )
            for number, leads in enumerate(states)
        ]
        names = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        found = [names[key] for key in keys]
        if len(names) == len(set(kinds)):
            break
        kinds = found
    merged: list[State] = [{} for _ in names]
    for number, leads in enumerate(states):
        one: State = {}
        for to, letters in leads.items():
            one.setdefault(found[to], []).extend(letters)
        merged[found[number]] = one
    last = {found[number] for number in ends}
    alive, grows = set(last), True
    while grows:
        more = {number for number, leads in enumerate(merged) if alive & set(leads)} - alive
        alive |= more
        grows = bool(more)
    if len(alive) > MAX_STATES:
        raise Beyond
    kept = [
        {to: letters for to, letters in leads.items() if to in alive} if number in alive else {}
        for number, leads in enumerate(merged)
    ]
    return kept, last
