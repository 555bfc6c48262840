"""Which slots get or lose a matcher with the next snapshot."""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping

from weft.engine.sequence import Sequence
from weft.grammar.base import Matcher
from weft.guided.grammar_stream import GrammarStream


class Attachments:
    """What changes with the next push. Matchers of requests that have ended stay in their slots until then."""

    def __init__(self, grammar: GrammarStream) -> None:
        self._grammar, self._state = grammar, grammar.state
        self._next: dict[int, Matcher | None] = {}
        self._holds_ended = self._holds_large = False
        self.epoch = 0
        """The epoch of the last snapshot that was left."""

    def change(self, attach: Mapping[int, Matcher | None]) -> None:
        """Slots get other matchers, or none."""
        self._next |= attach

    def release(self, sequence: Sequence, slots: abc.Sequence[int]) -> None:
        """A sequence gave these slots back. It may have others by now."""
        if sequence.is_guided:
            self._next |= dict.fromkeys(slots)
            self._holds_ended = True
            self._holds_large |= sequence.starts_ahead

    def push(self, slots: abc.Sequence[int]) -> None:
        """Leave the next iteration's snapshot."""
        attach, self._next = self._next, {}
        self.epoch = self._grammar.push(slots, attach)

    def may_vacate(self, is_idle: bool) -> bool:
        """Whether matchers of requests that have ended are worth a wait: large ones, or nothing else runs."""
        return self._holds_large or (self._holds_ended and is_idle)

    def vacate(self) -> bool:
        """Let go of the matchers of requests that have ended, with nothing in flight. Without, they would stay until
        the next iteration with a guide. Whether it could be done now."""
        if self._state.num_pending:
            return False
        self._state.vacate([slot for slot, matcher in self._next.items() if matcher is None])
        self._holds_ended = self._holds_large = False
        return True
