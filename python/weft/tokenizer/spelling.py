"""Finds the token sequences that spell a bad word. All of them are blocked."""

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
"""The smallest number of slot entries that a bad word takes: one token, and the mark of its end."""


class Speller:
    """Finds token sequences for bad words. `tokens` are the bytes of each token of the vocabulary."""

    def __init__(self, tokenizer: Tokenizer, tokens: Sequence[bytes]) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens

    def bad_words(self, words: Sequence[str | Sequence[int]], room: int) -> set[tuple[int, ...]]:
        """The token sequences to block for `words`, which are texts or lists of token ids.

        A list of ids is blocked as it is. For each text, its `usual` sequences are blocked. Then the `others` of all
        texts are added, the shortest first, while they fit in `room` entries. A sequence takes one entry more than it
        has tokens. If the usual sequences do not fit, the result ends with the first text that exceeds the room."""
        texts = dict.fromkeys(word for word in words if isinstance(word, str))
        found = {tuple(map(index, word)) for word in words if not isinstance(word, str)}
        room -= sum(len(spelling) + 1 for spelling in found)
        for text in texts:
            if room < 0:
                return found  # too many already: the caller refuses the request
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
        """The tokenizer's encodings of the word alone and after a space."""
        spellings = (self._tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word}"))
        return {tuple(tokens) for tokens in spellings if tokens}

    def others(self, word: str, limit: int = 32) -> set[tuple[int, ...]]:
        """Token sequences whose bytes are the word, and those whose bytes are the word after a space: the `limit`
        shortest of each."""
        return {spelling for ways in self._others(word, limit) for spelling in ways}

    def _others(self, word: str, limit: int = 32) -> Iterator[Iterator[tuple[int, ...]]]:
        """Two iterators, for the word and for the word after a space: the `limit` shortest sequences of each, by
        length."""
        yield islice(self._joined(word.encode()), limit)
        # Sequences with a separate space token in front are left out: they end with a sequence of the word alone,
        # which is blocked already.
        yield islice(self._joined(f" {word}".encode(), without=b" "), limit)

    def _joined(self, text: bytes, without: bytes = b"") -> Iterator[tuple[int, ...]]:
        """The sequences of tokens whose bytes join to `text`, the shortest first. Sequences whose first token has the
        bytes `without` are left out."""
        size = len(text)
        fewest = [0.0] * (size + 1)  # the smallest number of tokens from each byte to the end
        steps: list[list[tuple[int, int]]] = [
            [] for _ in range(size)
        ]  # for each byte of the text: the tokens that begin there, with the byte after their last
        for start in reversed(range(size)):
            longest = self._longest.get(text[start : start + 2], 1)
            for end in range(start + 1, min(start + longest, size) + 1):
                if start or text[:end] != without:
                    steps[start] += [
                        (token, end) for token in self._ids.get(text[start:end], ()) if fewest[end] < inf
                    ]
            fewest[start] = min((1 + fewest[end] for _, end in steps[start]), default=inf)
        # A best-first search by the length of the whole sequence. Ties go to the sequence that covers the most text,
        # then to the oldest. A sequence is a linked list: its last token and the sequence before it.
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
        """The length in bytes of the longest token, by the token's first two bytes."""
        found: dict[bytes, int] = {}
        for token in self._tokens:
            if len(token) > found.get(token[:2], 1):
                found[token[:2]] = len(token)
        return found

    @cached_property
    def _ids(self) -> dict[bytes, list[int]]:
        """Token ids by their bytes."""
        found: dict[bytes, list[int]] = {}
        for i, token in enumerate(self._tokens):
            if token:
                found.setdefault(token, []).append(i)
        return found


def by_length(ways: Iterable[Iterator[tuple[int, ...]]]) -> Iterator[set[tuple[int, ...]]]:
    """Merge iterators that yield their sequences in order of length. Yields the set of all sequences of the smallest
    length, then of the next, and so on."""
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
    """Convert a linked list, (last token, list before it), to a tuple."""
    found = []
    while tokens is not None:
        token, tokens = tokens
        found.append(token)
    return tuple(reversed(found))
