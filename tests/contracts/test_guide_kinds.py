"""What every guide promises that no grammar library compiles: free text before a guide, matchers of a user's own."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from grammars import END, CountdownMatcher, allowed, new_row, pick, small_vocabulary
from guide_kinds import KINDS
from weft import registry
from weft.errors import GuideError, GuideStateError
from weft.grammar import Guide, GuideCompiler, Matcher, wrap_matcher

VOCAB = small_vocabulary().vocab_size
STEPS = 14


@pytest.fixture(scope="module")
def compiler() -> Iterator[GuideCompiler]:
    with GuideCompiler(small_vocabulary()) as made:
        yield made


def mask(matcher: Matcher) -> np.ndarray:
    row = new_row()
    row[:] = -1
    matcher.fill(row)
    return row


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_walk_keeps_the_contract(compiler: GuideCompiler, name: str) -> None:
    """The mask permits exactly what accept takes; refusal changes nothing; rollback restores the same bits."""
    compiled = compiler.compile(KINDS[name]())
    for walk in range(4):
        rng = random.Random(zlib.crc32(name.encode()) + walk)
        matcher = compiled.matcher()
        rows: list[np.ndarray] = []
        taken: list[int] = []
        for _ in range(STEPS):
            row = mask(matcher)
            choices = allowed(row)
            assert choices
            assert 2 not in choices and max(choices) < 259 + 15
            assert [token for token in range(VOCAB) if matcher.validate([token])] == choices
            for token in {rng.randrange(VOCAB) for _ in range(8)} - set(choices):
                assert not matcher.accept(token)
            np.testing.assert_array_equal(mask(matcher), row)
            rows.append(row)
            taken.append(pick(choices, rng))
            assert matcher.accept(taken[-1])
            if matcher.is_terminated():
                assert allowed(mask(matcher)) == [END]
                assert not matcher.accept(1)
                break
            if rng.random() < 0.4:
                back = rng.randint(1, len(taken))
                matcher.rollback(back)
                np.testing.assert_array_equal(mask(matcher), rows[-back])
                assert matcher.validate(taken[-back:]) == back
                np.testing.assert_array_equal(mask(matcher), rows[-back])
                assert all(matcher.accept(token) for token in taken[-back:])
        matcher.rollback(len(taken))
        assert not matcher.is_terminated()
        np.testing.assert_array_equal(mask(matcher), rows[0])


@pytest.mark.parametrize("name", sorted(KINDS))
def test_forks_and_resets(compiler: GuideCompiler, name: str) -> None:
    rng = random.Random(3)
    matcher = compiler.compile(KINDS[name]()).matcher()
    first = mask(matcher)
    for _ in range(2):
        assert matcher.accept(pick(allowed(mask(matcher)), rng))
    before = mask(matcher)
    fork = matcher.fork()
    np.testing.assert_array_equal(mask(fork), before)
    assert fork.accept(pick(allowed(before), rng))
    np.testing.assert_array_equal(mask(matcher), before)
    other = mask(fork)
    matcher.reset()
    np.testing.assert_array_equal(mask(matcher), first)
    np.testing.assert_array_equal(mask(fork), other)
    fork.rollback(3)
    np.testing.assert_array_equal(mask(fork), first)
    del matcher
    np.testing.assert_array_equal(mask(fork), first)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_it_ends_and_takes_the_end_back(compiler: GuideCompiler, name: str) -> None:
    rng = random.Random(11)
    matcher = compiler.compile(KINDS[name]()).matcher()
    for _ in range(300):
        before = mask(matcher)
        choices = allowed(before)
        assert matcher.accept(END if END in choices else rng.choice(choices))
        if matcher.is_terminated():
            break
    assert matcher.is_terminated()
    matcher.rollback(1)
    assert not matcher.is_terminated()
    np.testing.assert_array_equal(mask(matcher), before)


def test_every_kind_of_the_registry_is_tried() -> None:
    tried = {KINDS[name]().kind for name in KINDS}
    assert {"after", "matcher", "plugin", "recognizer"} <= tried <= set(registry.names("guides"))


class OnlyForward:
    """A countdown without rollback, fork or reset."""

    def __init__(self) -> None:
        self.inner = CountdownMatcher(3)
        self.accept: Callable[[int], bool] = self.inner.accept
        self.fill, self.is_terminated = self.inner.fill, self.inner.is_terminated


class Forgetful(OnlyForward):
    """Answers the second time otherwise than the first."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).made += 1
        if type(self).made > 1:
            self.accept = lambda token: False


class RaisesAtTheEnd(CountdownMatcher):
    def __init__(self, place: int) -> None:
        super().__init__(4)
        self.place = place

    def is_terminated(self) -> bool:
        if len(self.taken) == self.place:
            raise KeyError("planted")
        return super().is_terminated()


def test_what_is_missing_is_replayed() -> None:
    matcher = wrap_matcher(OnlyForward(), OnlyForward)  # type: ignore[arg-type]
    assert matcher.accept(100)
    assert matcher.validate([101, 100, END]) == 3
    fork = matcher.fork()
    assert matcher.validate([100, 100, END]) == 3
    assert fork.accept(101)
    matcher.rollback(1)
    assert matcher.validate([100, 101, 100, END]) == 4
    with pytest.raises(GuideStateError, match="rollback of 2 tokens, of 0"):
        matcher.rollback(2)
    assert matcher.validate([100]) == 1
    fork.reset()
    assert fork.validate([100, 101, 100, END]) == 4


def test_a_replay_that_goes_otherwise_ends_the_matcher() -> None:
    Forgetful.made = 0
    matcher = wrap_matcher(Forgetful(), Forgetful)  # type: ignore[arg-type]
    assert matcher.accept(100)
    assert matcher.accept(100)
    with pytest.raises(GuideStateError, match="refused token 100 in a replay, which it had taken"):
        matcher.rollback(1)
    for call in (lambda: matcher.accept(100), lambda: matcher.fill(new_row()), lambda: matcher.rollback(1)):
        with pytest.raises(GuideStateError, match="refused token 100 in a replay"):
            call()


def test_a_matcher_needs_some_way_back() -> None:
    with pytest.raises(GuideError, match="needs a method rollback, or reset, or a factory"):
        wrap_matcher(OnlyForward())  # type: ignore[arg-type]


def test_what_is_terminated_raises_is_told() -> None:
    with pytest.raises(GuideError, match=r"can't say whether it has ended: KeyError: 'planted'"):
        wrap_matcher(RaisesAtTheEnd(0))
    matcher = wrap_matcher(RaisesAtTheEnd(2))
    assert matcher.accept(100)
    with pytest.raises(GuideStateError, match="KeyError: 'planted'"):
        matcher.validate([100])
    assert allowed(mask(matcher)) == [100, 101]
    with pytest.raises(GuideStateError, match=r"KeyError: 'planted' .*test_guide_kinds\.py:\d+"):
        matcher.accept(100)


def test_a_guide_within_a_guide_may_be_ones_own(compiler: GuideCompiler) -> None:
    matcher = compiler.compile(Guide.after("x", Guide.matcher(OnlyForward))).matcher()  # type: ignore[arg-type]
    text = [3 + ord("a"), 3 + ord("x"), 100, 101, 100, END]
    assert matcher.validate(text) == len(text)
