"""A pattern for the texts in which another one is not found, by the automaton of these texts."""

from __future__ import annotations

from typing import Any

from weft.grammar.schema.automaton import Automaton, Beyond, State
from weft.grammar.schema.characters import spelled

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
