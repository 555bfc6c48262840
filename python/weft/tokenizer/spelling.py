"""How words are written in the tokens of a vocabulary: what is blocked where a bad word is a text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from math import inf
from operator import index
from typing import Any

from weft.tokenizer.tokenizer import Tokenizer

SHORTEST = 2
"""What a bad word takes of the room at least: a token, and its end."""


class Speller:
    """The ways to write bad words in tokens. `tokens` are the bytes of each token of the vocabulary."""

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[bytes]) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens

    def bad_words(self, words: Sequence[str | Sequence[int]], room: int) -> set[tuple[int, ...]]:
        """Lists of token ids as they are; texts as `usual` and, while there is room, as `others` say, the shortest
        first. Each takes its tokens and one more of `room`. Where the usual ones do not fit, those up to the first that
        does not."""
        texts = dict.fromkeys(word for word in words if isinstance(word, str))
        found = {tuple(map(index, word)) for word in words if not isinstance(word, str)}
        room -= sum(len(spelling) + 1 for spelling in found)
        for text in texts:
            if room < 0:
                return found  # the caller has to be told anyway
            usual = self.usual(text) - found
            room -= sum(len(spelling) + 1 for spelling in usual)
            found |= usual
        if room < SHORTEST:
            return found
        for others in by_length(ways for text in texts for ways in self._others(text)):
            for spelling in sorted(others - found):
                room -= len(spelling) + 1
                if room < 0:
                    return found
                found.add(spelling)
        return found

    def usual(self, word: str) -> set[tuple[int, ...]]:
        """As the tokenizer writes the word by itself and after a space."""
        spellings = (self._tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word}"))
        return {tuple(tokens) for tokens in spellings if tokens}

    def others(self, word: str, limit: int = 32) -> set[tuple[int, ...]]:
        """As tokens of the vocabulary join to the word, and to the word after a space: of each the `limit` shortest."""
        return {spelling for ways in self._others(word, limit) for spelling in ways}

    def _others(self, word: str, limit: int = 32) -> Iterator[Iterator[tuple[int, ...]]]:
        """The ways to write the word, and the word after a space: of each the `limit` shortest, in that order."""
        yield islice(self._joined(word.encode()), limit)
        # A space that is a token of its own adds nothing: the word after it is blocked without it.
        yield islice(self._joined(f" {word}".encode(), without=b" "), limit)

    def _joined(self, text: bytes, without: bytes = b"") -> Iterator[tuple[int, ...]]:
        """The sequences of tokens that join to `text` and do not begin with `without`, the shortest first."""
        size = len(text)
        fewest = [0.0] * (size + 1)  # tokens that are needed from each byte on
        steps: list[list[tuple[int, int]]] = [[] for _ in range(size)]  # token and where it ends
        for start in reversed(range(size)):
            longest = self._longest.get(text[start : start + 2], 1)
            for end in range(start + 1, min(start + longest, size) + 1):
                if start or text[:end] != without:
                    steps[start] += [
                        (token, end) for token in self._ids.get(text[start:end], ()) if fewest[end] < inf
                    ]
            fewest[start] = min((1 + fewest[end] for _, end in steps[start]), default=inf)
        # Best first, by the length of the whole sequence; of equals the one that has come furthest, then the oldest. A
        # sequence is its last token and the sequence before that.
        queue: list[tuple[float, int, int, int, Any]] = [(fewest[0], 0, 0, 0, None)]
        count = 0
        while queue and queue[0][0] < inf:
            _, place, _, length, tokens = heappop(queue)
            if place == -size:
                yield _unlinked(tokens)
                continue
            for token, end in steps[-place]:
                count += 1
                heappush(queue, (length + 1 + fewest[end], -end, count, length + 1, (token, tokens)))

    @cached_property
    def _longest(self) -> dict[bytes, int]:
        """The bytes of the longest token that begins with some two bytes."""
        found: dict[bytes, int] = {}
        for token in self._tokens:
            if len(token) > found.get(token[:2], 1):
                found[token[:2]] = len(token)
        return found

    @cached_property
    def _ids(self) -> dict[bytes, list[int]]:
        """The ids that stand for some bytes."""
        found: dict[bytes, list[int]] = {}
        for i, token in enumerate(self._tokens):
            if token:
                found.setdefault(token, []).append(i)
        return found


def by_length(ways: Iterable[Iterator[tuple[int, ...]]]) -> Iterator[set[tuple[int, ...]]]:
    """The sequences of several iterators that give the shortest first, together: all of one length, then the next."""
    heads = [(len(first), place, first, way) for place, way in enumerate(ways) if (first := next(way, None))]
    heapify(heads)
    while heads:
        length, level = heads[0][0], set()
        while heads and heads[0][0] == length:
            _, place, spelling, way = heads[0]
            level.add(spelling)
            if (following := next(way, None)) is None:
                heappop(heads)
            else:
                heapreplace(heads, (len(following), place, following, way))
        yield level


def _unlinked(tokens: tuple[int, Any] | None) -> tuple[int, ...]:
    """A sequence that is given as its last token and the sequence before that."""
    found = []
    while tokens is not None:
        token, tokens = tokens
        found.append(token)
    return tuple(reversed(found))
