"""The contract of every matcher, of any backend, kind of guide and vocabulary size: a random walk, a test of forks,
and a test of end tokens."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.grammar import Matcher, Vocabulary

FEW = 1000  # up to FEW tokens, all are tried at each step, and up to MANY at the first; beyond that, a sample
MANY = 40_000
CLOSERS = frozenset(3 + byte for byte in b'"}])<a')


@dataclass(frozen=True)
class Contract:
    """The matchers of one guide for a vocabulary of `grammars`. `named` are the special tokens that the guide names;
    no others may be allowed."""

    make: Callable[[], Matcher]
    vocabulary: Vocabulary
    named: Set[int] = frozenset()

    def walk(self, rng: random.Random, steps: int) -> None:
        """Check at each step of a random walk that the mask allows exactly the tokens that `accept` accepts, that
        refused tokens change nothing, that rollback restores the same mask, and that a fork does not move."""
        matcher, rows, taken = self.make(), list[NDArray[np.int32]](), list[int]()
        for step in range(steps):
            row = self._mask(matcher)
            choices = self._choices(row)
            self._permits_what_it_takes(matcher, choices, rng, is_first=step == 0)
            np.testing.assert_array_equal(self._mask(matcher), row)
            fork = matcher.fork()
            np.testing.assert_array_equal(self._mask(fork), row)
            rows.append(row)
            taken.append(self._pick(choices, rng))
            assert matcher.accept(taken[-1])
            np.testing.assert_array_equal(self._mask(fork), row)
            if matcher.is_terminated():
                self._has_ended(matcher)
                break
            if rng.random() < 0.4:
                back = rng.randint(1, len(taken))
                matcher.rollback(back)
                np.testing.assert_array_equal(self._mask(matcher), rows[-back])
                assert matcher.validate(taken[-back:]) == back
                np.testing.assert_array_equal(self._mask(matcher), rows[-back])
                assert all(matcher.accept(token) for token in taken[-back:])
        matcher.rollback(len(taken))
        assert not matcher.is_terminated()
        np.testing.assert_array_equal(self._mask(matcher), rows[0])
        assert all(matcher.accept(token) for token in taken)
        for back, row in enumerate(reversed(rows), 1):
            matcher.rollback(1)
            np.testing.assert_array_equal(self._mask(matcher), row)
            assert matcher.validate(taken[-back:]) == back

    def forks_and_resets(self, rng: random.Random) -> None:
        """Check that a fork and its original are independent, even after one of them is reset or deleted."""
        matcher, taken = self.make(), 0
        first = self._mask(matcher)
        while taken < 2 and not matcher.is_terminated():
            assert matcher.accept(self._pick(self._choices(self._mask(matcher)), rng))
            taken += 1
        before = self._mask(matcher)
        fork = matcher.fork()
        np.testing.assert_array_equal(self._mask(fork), before)
        if not matcher.is_terminated():
            assert fork.accept(self._pick(self._choices(before), rng))
            taken += 1
        np.testing.assert_array_equal(self._mask(matcher), before)
        other = self._mask(fork)
        matcher.reset()
        np.testing.assert_array_equal(self._mask(matcher), first)
        np.testing.assert_array_equal(self._mask(fork), other)
        fork.rollback(taken)
        np.testing.assert_array_equal(self._mask(fork), first)
        del matcher
        np.testing.assert_array_equal(self._mask(fork), first)

    def ends_and_takes_the_end_back(self, rng: random.Random, within: int = 300) -> None:
        """Check that every end token is accepted when the mask allows it, and can be rolled back. The end must be
        reachable within `within` tokens."""
        matcher = self.make()
        for _ in range(within):
            before = self._mask(matcher)
            choices = self._choices(before)
            ends = [token for token in choices if token in self.vocabulary.end_ids]
            if ends:
                break
            short = [token for token in choices if token < 300] or choices
            closers = [token for token in short if token in CLOSERS | self.named]
            assert matcher.accept(rng.choice(closers if closers and rng.random() < 0.7 else short))
        for end in ends:
            assert matcher.accept(end)
            self._has_ended(matcher)
            matcher.rollback(1)
            assert not matcher.is_terminated()
            np.testing.assert_array_equal(self._mask(matcher), before)
        assert ends == sorted(self.vocabulary.end_ids)

    # -- helpers

    @functools.cached_property
    def _never(self) -> set[int]:
        """Special tokens that the guide does not name, and padding."""
        textless = {token for token, text in enumerate(self.vocabulary.tokens) if not text}
        return textless - self.named - set(self.vocabulary.end_ids)

    def _mask(self, matcher: Matcher) -> NDArray[np.int32]:
        """Fill a row that held ones, and clear the bits beyond the vocabulary."""
        words = -(-self.vocabulary.vocab_size // 32)
        row = np.full(words, -1, dtype=np.int32)
        matcher.fill(row)
        row.view(np.uint32)[-1] &= np.uint32(0xFFFFFFFF >> (words * 32 - self.vocabulary.vocab_size))
        return row

    def _choices(self, row: NDArray[np.int32]) -> list[int]:
        """The tokens that a mask allows. There must be some, none without text, and either all end tokens or none."""
        choices: list[int] = np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0].tolist()
        ends = set(self.vocabulary.end_ids)
        assert choices
        assert not self._never.intersection(choices), "special tokens, or padding"
        assert len(ends.intersection(choices)) in (0, len(ends)), "one end, and not the others"
        return choices

    def _permits_what_it_takes(
        self, matcher: Matcher, choices: list[int], rng: random.Random, is_first: bool
    ) -> None:
        size, permitted = self.vocabulary.vocab_size, set(choices)
        tried: Set[int] | range = range(size)
        if size > (MANY if is_first else FEW):
            drawn = {rng.randrange(size) for _ in range(300)} | set(rng.choices(choices, k=100))
            tried = drawn | self._never | {*self.vocabulary.end_ids, *range(300)}
        wrong = [token for token in tried if matcher.validate([token]) != (token in permitted)]
        assert wrong == []
        for token in {rng.randrange(size) for _ in range(8)} - permitted:
            assert not matcher.accept(token)

    def _has_ended(self, matcher: Matcher) -> None:
        assert matcher.is_terminated()
        assert self._choices(self._mask(matcher)) == sorted(self.vocabulary.end_ids)
        for token in (*self.vocabulary.end_ids, 1, 3 + ord("a")):
            assert not matcher.accept(token)

    def _pick(self, choices: list[int], rng: random.Random) -> int:
        """Pick a token. End tokens are rare, so that texts grow. Bytes and named tokens are frequent, though words
        outnumber them."""
        rare = [token for token in choices if token not in self.vocabulary.end_ids]
        drawn = rng.random()
        if not rare or (len(rare) < len(choices) and drawn < 0.2):
            return rng.choice(choices)
        if drawn < 0.4 and self.named.intersection(rare):
            return rng.choice([token for token in rare if token in self.named])
        if drawn < 0.7 and rare[0] < 300:
            return rng.choice([token for token in rare if token < 300])
        return rng.choice(rare)
