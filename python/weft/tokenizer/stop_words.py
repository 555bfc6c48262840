"""Finds stop words, which are texts or sequences of token ids. The time does not grow with the number of words.

One automaton (`csrc/support/word_automaton.h`) holds all stop words of a request. The request's sequences and beams
share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, Protocol, Self

from weft._core import TokenTexts, WordAutomaton


class WordSearch(NamedTuple):
    """The automata of a watcher, with which native code finds the tokens at which a word may end.

    tokens: finds sequences of token ids. None: there are none.
    texts: finds texts in the bytes of the tokens, `token_texts`. None: there are none.
    """

    tokens: WordAutomaton | None = None
    texts: WordAutomaton | None = None
    token_texts: TokenTexts | None = None


class StopTexts:
    """Stop words that are texts, found incrementally in growing text. State 0 is the state of an empty text.

    `token_texts` are the bytes of the tokens, in a vocabulary whose tokens have the same bytes everywhere; else None.
    """

    def __init__(self, words: Sequence[str] = (), token_texts: TokenTexts | None = None) -> None:
        self._words = tuple(words)
        self._automaton = WordAutomaton.of_texts(list(words)) if words else None
        self._token_texts = token_texts

    def __bool__(self) -> bool:
        return bool(self._words)

    def find(self, state: int, text: str, seen: str) -> tuple[int, str | None, int]:
        """Search `text`, which follows the text that led to `state`. Words that end in the common prefix of `text` and
        `seen` are skipped, because that prefix was searched before.

        Returns the new state, the word that was found or None, and the index in `text` where the word begins. The index
        is negative if the word begins before `text`. If there are several words, the first one is returned.
        """
        if self._automaton is None:
            return 0, None, 0
        state, word, begin = self._automaton.find(state, text, seen)
        return state, self._words[word] if word >= 0 else None, begin

    def num_open(self, state: int) -> int:
        """The number of characters at the end of the text that led to `state` which may be the beginning of a word."""
        return self._automaton.num_open(state) if self._automaton is not None else 0

    @property
    def search(self) -> WordSearch | None:
        """The automaton and the bytes of the tokens; None if the bytes do not tell where a word may end."""
        # The replacement character in a word may also match bytes that are not UTF-8.
        if self._token_texts is None or any("\ufffd" in word for word in self._words):
            return None
        return WordSearch(texts=self._automaton, token_texts=self._token_texts)

    @property
    def memory_bytes(self) -> int:
        """The size of the automaton in bytes."""
        return self._automaton.memory_bytes if self._automaton is not None else 0


class StopSequences:
    """Stop words that are sequences of token ids."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self._sequences = [tuple(sequence) for sequence in sequences]
        self.automaton = WordAutomaton.of_tokens(self._sequences)

    def step(self, state: int, token: int) -> tuple[int, tuple[int, ...] | None]:
        """The state after one more token, and the first sequence that ends with this token, or None. State 0 is the
        state before any token."""
        state, word = self.automaton.step(state, token)
        return state, self._sequences[word] if word >= 0 else None


class Watcher(Protocol):
    """Watches an answer for stop words."""

    @property
    def search(self) -> WordSearch | None:
        """The automata that find the tokens at which a word may end; None if only `feed` finds them."""

    def feed(self, token: int) -> str | None:
        """Add the next token. Returns the word that it completes, or None."""

    def skip(self, tokens: Sequence[int]) -> None:
        """Add the next tokens, without looking for words that they complete."""

    def fork(self) -> Self:
        """A copy that has seen the same tokens."""


class StopTokens:
    """Watches an answer for sequences of token ids and, with `texts`, for texts."""

    def __init__(
        self, sequences: StopSequences | Sequence[Sequence[int]], texts: Watcher | None = None
    ) -> None:
        self._sequences = sequences if isinstance(sequences, StopSequences) else StopSequences(sequences)
        self.texts = texts
        self._state = 0

    def fork(self) -> StopTokens:
        """A copy that has seen the same tokens, for another beam."""
        twin = copy(self)
        twin.texts = self.texts.fork() if self.texts is not None else None
        return twin

    @property
    def search(self) -> WordSearch | None:
        """The automata that find the tokens at which a word may end; None if only `feed` finds them."""
        texts = self.texts.search if self.texts is not None else WordSearch()
        return None if texts is None else texts._replace(tokens=self._sequences.automaton)

    def skip(self, tokens: Sequence[int]) -> None:
        """Add the next tokens, without looking for words that they complete."""
        if self.texts is not None:
            self.texts.skip(tokens)
        for token in tokens:
            self._state, _ = self._sequences.step(self._state, token)

    def feed(self, token: int) -> str | None:
        """Add the next token. Returns the stop word that it completes, or None. A sequence of ids is returned as the
        text of its list."""
        word = self.texts.feed(token) if self.texts is not None else None
        self._state, found = self._sequences.step(self._state, token)
        return word if found is None else str(list(found))
