"""Complements a regular expression: makes a pattern for the texts in which another pattern is not found.

The steps are pattern to NFA, NFA to DFA, complement and minimization of the DFA, and DFA to pattern by state
elimination. A letter of the DFA is a range of characters that the pattern does not distinguish. Only patterns with few
states are supported. Anchors may stand only at the ends of the pattern or of its top-level alternatives.
"""

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
    """Complement a pattern, as parsed by `re`. Returns None if it is not supported, if it is found in
    every text, or if the result would be too long."""
    try:
        return _Written(*Automaton(parsed).others()).pattern()
    except Unsupported:
        return None


class _Written:
    """Converts a DFA to a pattern by state elimination. It removes one state after another. The paths through a state
    become patterns on the edges between its neighbours."""

    def __init__(self, states: list[State], ends: set[int]) -> None:
        last, first = len(states), len(states) + 1
        self._edges: dict[tuple[int, int], str] = {(first, 0): ""}
        self._edges |= {(number, last): "" for number in ends}
        for number, edges in enumerate(states):
            self._edges |= {(number, to): spelled(letters) for to, letters in edges.items()}
        self._last, self._first = last, first
        self._left = set(range(len(states)))

    def pattern(self) -> str:
        """Return the whole pattern. Raises `Unsupported` if it would be too long, or if the DFA accepts no text."""
        while self._left:
            self._eliminate(min(self._left, key=self._cost))
        path = self._edges.get((self._first, self._last))
        if path is None or len(path) > MAX_WRITTEN:
            raise Unsupported
        return f"^(?:{path})$"

    def _around(self, state: int) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
        into = [(a, way) for (a, b), way in self._edges.items() if b == state and a != state]
        out = [(b, way) for (a, b), way in self._edges.items() if a == state and b != state]
        return into, out

    def _cost(self, state: int) -> int:
        """The number of characters that the elimination of a state would write."""
        into, out = self._around(state)
        before, after = sum(len(way) for _, way in into), sum(len(way) for _, way in out)
        loop = len(self._edges.get((state, state), ""))
        return before * len(out) + after * len(into) + loop * len(into) * len(out)

    def _eliminate(self, state: int) -> None:
        into, out = self._around(state)
        loop = self._edges.get((state, state))
        repeat = f"{_group(loop)}*" if loop else ""
        for before, first in into:
            for after, second in out:
                path = f"{_side(first)}{repeat}{_side(second)}"
                existing = self._edges.get((before, after))
                self._edges[before, after] = path if existing is None else f"{existing}|{path}"
                if len(self._edges[before, after]) > MAX_WRITTEN:
                    raise Unsupported
        self._edges = {key: path for key, path in self._edges.items() if state not in key}
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
"""The edges of a DFA state: for each target state, by number, the characters that lead to it."""


class Unsupported(Exception):
    """The pattern has an unsupported part, or too many states."""


CATEGORIES = {
    _constants.CATEGORY_DIGIT: DIGITS,
    _constants.CATEGORY_SPACE: SPACES,
    _constants.CATEGORY_WORD: WORDS,
    _constants.CATEGORY_NOT_DIGIT: outside(DIGITS),
    # A character that only some regex engines count as a space is in both classes, so that neither complement has it.
    _constants.CATEGORY_NOT_SPACE: outside(ASCII_SPACES),
    _constants.CATEGORY_NOT_WORD: outside(WORDS),
}
NEWLINE = outside([(10, 10)])


def _characters(kind: Any, content: Any) -> Ranges | None:
    """The set of characters for a part that matches a single character; None for any other part."""
    if kind is _constants.LITERAL:
        return [(content, content)]
    if kind is _constants.NOT_LITERAL:
        return outside([(content, content)])
    if kind is _constants.ANY:
        return NEWLINE
    if kind is not _constants.IN:
        return None
    ranges: Ranges = []
    for inner, value in content:
        if inner is _constants.LITERAL:
            ranges.append((value, value))
        elif inner is _constants.RANGE:
            ranges.append(value)
        elif inner is _constants.CATEGORY:
            ranges += CATEGORIES[value]
        elif inner is not _constants.NEGATE:
            raise Unsupported
    return outside(ranges) if content[0][0] is _constants.NEGATE else ranges


class Automaton:
    """An NFA for the texts in which a pattern is found. Its states are called places. `_by` has the edges with
    characters, and `_free` the epsilon edges."""

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
            raise Unsupported
        self._by.append([])
        self._free.append([])
        return len(self._by) - 1

    def _add(self, parts: Iterable[tuple[Any, Any]], begin: int, end: int) -> None:
        place = begin
        for kind, content in parts:
            following = self._place()
            self._part(kind, content, place, following)
            place = following
        self._free[place].append(end)

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
            low, high, repeated = content
            self._repeated(low, high, repeated, begin, end)
        else:
            raise Unsupported

    def _repeated(self, low: int, high: Any, parts: Any, begin: int, end: int) -> None:
        place = begin
        for _ in range(low):
            following = self._place()
            self._add(parts, place, following)
            place = following
        if high is _constants.MAXREPEAT:
            loop, end_of_loop = self._place(), self._place()
            self._free[place].append(loop)
            self._add(parts, loop, end_of_loop)
            self._free[end_of_loop].append(loop)
            self._free[loop].append(end)
            return
        for _ in range(high - low):
            self._free[place].append(end)
            following = self._place()
            self._add(parts, place, following)
            place = following
        self._free[place].append(end)

    def _closed(self, places: Iterable[int]) -> frozenset[int]:
        """The epsilon closure of some places."""
        reached = set(places)
        pending = list(reached)
        while pending:
            for place in self._free[pending.pop()]:
                if place not in reached:
                    reached.add(place)
                    pending.append(place)
        return frozenset(reached)

    def others(self) -> tuple[list[State], set[int]]:
        """The minimal DFA for all other texts. Raises `Unsupported` if it has too many states. Returns its states,
        the start state first, and the numbers of the accepting states."""
        # The letters are the character ranges between all range ends of the pattern.
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
            # A set with the NFA's end place means that the pattern is found, so the complement does not accept there.
            if self._end not in places:
                ends.add(number)
            edges_out: State = {}
            for letter in letters:
                reached = self._closed(
                    to
                    for place in places
                    for ranges, to in self._by[place]
                    if any(low <= letter[0] <= high for low, high in ranges)
                )
                if reached not in numbers:
                    if len(numbers) >= MAX_STATES * 4:
                        raise Unsupported
                    numbers[reached] = len(numbers)
                    queue.append(reached)
                edges_out.setdefault(numbers[reached], []).append(letter)
            states.append(edges_out)
        return _minimized(states, ends)


def _branches(parts: list[tuple[Any, Any]]) -> list[Any]:
    """The top-level alternatives of a pattern. Each may have its own anchors."""
    if len(parts) == 1 and parts[0][0] is _constants.BRANCH:
        return list(parts[0][1][1])
    return [parts]


def _minimized(states: list[State], ends: set[int]) -> tuple[list[State], set[int]]:
    """Minimize a DFA. Edges from and to states that reach no accepting state are removed. Raises `Unsupported` for more
    than `MAX_STATES` states."""
    # Moore's algorithm: split classes until the states of each class have edges to the same classes.
    classes = [int(number in ends) for number in range(len(states))]
    while True:
        keys = [
            (
                classes[number],
                frozenset((letter, classes[to]) for to, letters in edges.items() for letter in letters),
            )
            for number, edges in enumerate(states)
        ]
        names = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        refined = [names[key] for key in keys]
        if len(names) == len(set(classes)):
            break
        classes = refined
    merged: list[State] = [{} for _ in names]
    for number, edges in enumerate(states):
        merged_edges: State = {}
        for to, letters in edges.items():
            merged_edges.setdefault(refined[to], []).extend(letters)
        merged[refined[number]] = merged_edges
    last = {refined[number] for number in ends}
    alive, grows = set(last), True
    while grows:
        more = {number for number, leads in enumerate(merged) if alive & set(leads)} - alive
        alive |= more
        grows = bool(more)
    if len(alive) > MAX_STATES:
        raise Unsupported
    kept = [
        {to: letters for to, letters in leads.items() if to in alive} if number in alive else {}
        for number, leads in enumerate(merged)
    ]
    return kept, last
