"""Words that end an answer, texts or sequences of token ids: found in a time that does not grow with their number.

An automaton (`csrc/support/word_automaton.h`) knows all words of a request; its sequences and beams share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Protocol, Self

from weft._core import WordAutomaton


class StopTexts:
    """Texts that end an answer, looked for in text as it comes. A text that nothing is known of is in state 0."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._words = tuple(words)
        self._automaton = WordAutomaton.of_texts(list(words)) if words else None

    def __bool__(self) -> bool:
        return bool(self._words)

    def find(self, state: int, text: str, seen: str) -> tuple[int, str | None, int]:
        """A text in `state` goes on with `text`: its state then; the word that ends there, after what `text` shares
        with `seen`, or None; and the character of `text` where that begins, negative before it. Of several words the
        first in the text."""
        if self._automaton is None:
            return 0, None, 0
        state, word, begin = self._automaton.find(state, text, seen)
        return state, self._words[word] if word >= 0 else None, begin

    def num_open(self, state: int) -> int:
        """How many characters at the end of a text in `state` may become a word."""
        return self._automaton.num_open(state) if self._automaton is not None else 0

    @property
    def memory_bytes(self) -> int:
        """What is held to find them."""
        return self._automaton.memory_bytes if self._automaton is not None else 0


class StopSequences:
    """Sequences of token ids that end an answer."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._sequences = [tuple(sequence) for sequence in sequences]
        self._automaton = WordAutomaton.of_tokens(self._sequences)

    def step(self, state: int, token: int) -> tuple[int, tuple[int, ...] | None]:
        """The state after one more token (0: at the beginning), and the first of the sequences that end there."""
        state, word = self._automaton.step(state, token)
        return state, self._sequences[word] if word >= 0 else None


class Watcher(Protocol):
    """Watches an answer for words."""

    def feed(self, token: int) -> str | None:
        """Take the next token; the word that it completes, if it does."""

    def fork(self) -> Self:
        """Another one that has seen the same tokens."""


class StopTokens:
    """Watches an answer for sequences of token ids, and for texts (`texts`, where there are such)."""

    def __init__(
        self, sequences: StopSequences | Sequence[Sequence[int]], texts: Watcher | None = None
    ) -> None:
        self._sequences = sequences if isinstance(sequences, StopSequences) else StopSequences(sequences)
        self._texts = texts
        self._state = 0

    def fork(self) -> StopTokens:
        """Another one that has seen the same tokens, for a beam of its own."""
        twin = copy(self)
        twin._texts = self._texts.fork() if self._texts is not None else None
        return twin

    def feed(self, token: int) -> str | None:
        """Take the next token; the stop word that now is complete: the text, or the sequence as it is written."""
        word = self._texts.feed(token) if self._texts is not None else None
        self._state, found = self._sequences.step(self._state, token)
        return word if found is None else str(list(found))
