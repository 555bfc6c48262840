"""Makes random calls on a matcher and its forks, and compares them with an oracle that replays the text from its
start.

The oracle is a new matcher of the same guide. It accepts the tokens one after another and is called once: it was
never rolled back, forked, reset or called twice. A matcher must give the oracle's results after any sequence of
calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from weft.errors import GuideStateError
from weft.grammar import CompiledGuide, Matcher, Vocabulary

MAX_TEXT = 40
MAX_MATCHERS = 4
MAX_REMEMBERED = 400


@dataclass
class Facts:
    """The oracle's results for a text: the mask, whether it blocks anything, the allowed tokens, whether the text
    has ended, and the forced tokens."""

    row: np.ndarray
    blocks: bool
    allowed: list[int]
    terminated: bool
    forced: list[int]


@dataclass
class Follower:
    """A matcher, and the text that it has accepted."""

    matcher: Matcher
    text: list[int] = field(default_factory=list)


class Difference(AssertionError):
    """A matcher and its oracle disagree. The message lists the last calls."""


class MatcherFuzz:
    """Makes random calls on matchers of one compiled guide. The same `rng` state makes the same calls.

    `is_native`: the matcher itself handles ids out of range and rows of any width. A matcher in Python need not.
    """

    def __init__(
        self, compiled: CompiledGuide, vocabulary: Vocabulary, rng: random.Random, is_native: bool = True
    ) -> None:
        self.rng = rng
        self.num_calls = 0
        self._compiled = compiled
        self._is_native = is_native
        self._texts = [i for i, text in enumerate(vocabulary.tokens) if text] + list(vocabulary.end_ids)
        self._vocab_size = vocabulary.vocab_size
        self._words = -(-vocabulary.vocab_size // 32)
        self._remembered: dict[tuple[int, ...], Facts] = {}
        self._followers = [Follower(compiled.matcher())]
        self._calls: list[str] = []
        self._actions: list[tuple[Callable[[Follower], None], int]] = [
            (self._accept_allowed, 30),
            (self._accept_any, 12),
            (self._fill, 16),
            (self._validate, 10),
            (self._rollback, 10),
            (self._rollback_too_far, 2),
            (self._fork, 4),
            (self._drop, 3),
            (self._reset, 2),
            (self._forced, 5),
            (self._wide_and_narrow_rows, 2),
        ]

    def run(self, num_calls: int) -> None:
        """Make `num_calls` calls. Raises `Difference`."""
        actions, weights = zip(*self._actions, strict=True)
        for _ in range(num_calls):
            follower = self._followers[self.rng.randrange(len(self._followers))]
            action = self.rng.choices(actions, weights)[0]
            self._calls.append(f"{action.__name__[1:]} behind {follower.text}")
            self.num_calls += 1
            try:
                action(follower)
                self._same(
                    follower.matcher.is_terminated(), self._facts(follower.text).terminated, "is_terminated"
                )
            except Difference:
                raise
            except Exception as error:
                raise Difference(f"{type(error).__name__}: {error}\n" + self._history()) from error

    # -- the oracle

    def _at(self, text: Iterable[int]) -> Matcher:
        matcher = self._compiled.matcher()
        for token in text:
            self._same(matcher.accept(token), True, f"a new matcher's accept({token}) of {text}")
        return matcher

    def _facts(self, text: list[int]) -> Facts:
        key = tuple(text)
        if key not in self._remembered:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            row, blocks = self._row_of(self._at(text))
            allowed, ended = self._allowed(row), self._at(text).is_terminated()
            self._remembered[key] = Facts(row, blocks, allowed, ended, self._at(text).forced(8))
        return self._remembered[key]

    def _row_of(self, matcher: Matcher) -> tuple[np.ndarray, bool]:
        """Fill a row that held random bits, and clear the bits beyond the vocabulary."""
        row = np.full(self._words, self.rng.getrandbits(31), dtype=np.int32)
        blocks = matcher.fill(row)
        beyond = self._words * 32 - self._vocab_size
        row.view(np.uint32)[-1] &= np.uint32(0xFFFFFFFF >> beyond)
        return row, blocks

    def _allowed(self, row: np.ndarray) -> list[int]:
        return [int(token) for token in np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0]]

    def _num_taken(self, text: list[int], tokens: list[int]) -> int:
        oracle = self._at(text)
        for count, token in enumerate(tokens):
            if oracle.is_terminated() or not oracle.accept(token):
                return count
        return len(tokens)

    # -- the calls

    def _accept_allowed(self, follower: Follower) -> None:
        facts = self._facts(follower.text)
        if facts.terminated or len(follower.text) >= MAX_TEXT:
            return self._rollback(follower)
        self._same(bool(facts.allowed), True, "some token is allowed")
        token = self._pick(facts.allowed)
        self._same(follower.matcher.accept(token), True, f"accept({token})")
        follower.text.append(token)

    def _accept_any(self, follower: Follower) -> None:
        facts = self._facts(follower.text)
        token = self._any_token()
        if facts.terminated:
            return self._same(follower.matcher.validate([token]), 0, f"validate([{token}]) behind the end")
        expected = self._num_taken(follower.text, [token]) == 1
        self._same(token in facts.allowed, expected, f"whether the mask allows {token}")
        self._same(follower.matcher.accept(token), expected, f"accept({token})")
        if expected:
            follower.text.append(token)

    def _fill(self, follower: Follower) -> None:
        facts = self._facts(follower.text)
        row, blocks = self._row_of(follower.matcher)
        differ = (row != facts.row).nonzero()[0].tolist()
        self._same(differ, [], "words of the mask that differ")
        self._same(blocks, facts.blocks, "whether the mask blocks anything")

    def _validate(self, follower: Follower) -> None:
        tokens: list[int] = []
        oracle = self._at(follower.text)
        for _ in range(self.rng.randrange(7)):
            allowed = self._allowed(self._row_of(oracle)[0])
            token = self._any_token() if not allowed or self.rng.random() < 0.15 else self._pick(allowed)
            tokens.append(token)
            if not oracle.accept(token):
                break
        tokens += [self._any_token() for _ in range(self.rng.randrange(3))]
        expected = self._num_taken(follower.text, tokens)
        self._same(follower.matcher.validate(tokens), expected, f"validate({tokens})")

    def _rollback(self, follower: Follower) -> None:
        count = self.rng.randint(0, min(len(follower.text), 12))
        follower.matcher.rollback(count)
        del follower.text[len(follower.text) - count :]

    def _rollback_too_far(self, follower: Follower) -> None:
        try:
            follower.matcher.rollback(len(follower.text) + self.rng.randint(1, 3))
        except GuideStateError:
            return self._fill(follower)
        raise Difference("rollback beyond the start did not fail\n" + self._history())

    def _fork(self, follower: Follower) -> None:
        if len(self._followers) < MAX_MATCHERS:
            self._followers.append(Follower(follower.matcher.fork(), list(follower.text)))

    def _drop(self, follower: Follower) -> None:
        self._followers.remove(follower)
        if not self._followers or self.rng.random() < 0.3:
            self._followers.append(Follower(self._compiled.matcher()))

    def _reset(self, follower: Follower) -> None:
        follower.matcher.reset()
        follower.text.clear()

    def _forced(self, follower: Follower) -> None:
        capacity = self.rng.choice([0, 1, 3, 8])
        forced = follower.matcher.forced(capacity)
        self._same(forced, self._facts(follower.text).forced[:capacity], f"forced({capacity})")
        self._same(self._num_taken(follower.text, forced), len(forced), "how many forced tokens are taken")

    def _wide_and_narrow_rows(self, follower: Follower) -> None:
        if not self._is_native:
            return self._fill(follower)
        wide = np.full(self._words + 2, -1, dtype=np.int32)
        follower.matcher.fill(wide)
        self._same(wide[self._words :].tolist(), [0, 0], "words beyond the vocabulary")
        try:
            follower.matcher.fill(np.zeros(self._words - 1, dtype=np.int32))
        except GuideStateError:
            return self._fill(follower)
        raise Difference("a row shorter than the vocabulary did not fail\n" + self._history())

    # -- helpers

    def _pick(self, allowed: list[int]) -> int:
        return allowed[self.rng.randrange(len(allowed))]

    def _any_token(self) -> int:
        if not self._is_native:
            return self._pick(self._texts)
        return self.rng.randrange(-2, self._vocab_size + 2)

    def _same(self, seen: object, expected: object, what: str) -> None:
        if seen != expected:
            raise Difference(f"{what}: {seen!r}, the oracle says {expected!r}\n" + self._history())

    def _history(self) -> str:
        return f"the last of {self.num_calls} calls:\n" + "\n".join(self._calls[-30:])
