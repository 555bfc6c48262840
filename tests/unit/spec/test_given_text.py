"""Text given with a request: while the answer is in it, what comes next in it is proposed."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from support.engine.proposing import FORCED, Iterations, X, Y, Z
from support.grammar.grammars import compiled, small_vocabulary
from weft.errors import InputError
from weft.grammar import Guide

TEXT = list(range(40, 52))
NONE = [-1] * 4


def given_only() -> Iterations:
    return Iterations(given=True, forced=False, ngram=None)


def test_while_the_answer_is_in_it() -> None:
    it = given_only()
    it.proposals.open(0, [X, Y], given=TEXT)
    it.proposals.open(1, [X, Y])
    assert it.run({0: 40, 1: 40}) == {0: [41, 42, 43, 44], 1: NONE}
    assert it.run({0: [41, 42, 43, 44, 45], 1: 41}) == {0: [46, 47, 48, 49], 1: NONE}
    assert it.run({0: 46}, num_drafts=2) == {0: [47, 48, -1, -1]}
    assert it.run({0: 47}, num_drafts=0) == {0: NONE}
    assert it.run({0: [48, 49]}) == {0: [50, 51, -1, -1]}
    assert it.run({0: [50, 51]}) == {0: NONE}
    assert it.run({0: 52}) == {0: NONE}
    assert it.proposals.counters().tokens == {"given": 4 + 4 + 2 + 2}


@pytest.mark.parametrize(
    ("said", "proposed"),
    [
        ([99, 41, 42, 43, 44], [45, 46, 47, 48]),  # another token in its place
        ([40, 41, 98, 99, 42, 43, 44, 45], [46, 47, 48, 49]),  # more than it has
        ([40, 45, 46, 47, 48], [49, 50, 51, -1]),  # less
        ([40, 99, 42, 43, 44], NONE),  # not enough yet
        ([40, 41, 99, 40, 41, 42, 43], NONE),  # only in what is past
        ([40, 99, 48, 49, 50, 51], NONE),  # at its end
        ([99, 41, 42, 43, 44, 98, 46, 47, 48, 49], [50, 51, -1, -1]),  # twice
    ],
)
def test_an_answer_that_left_it_comes_back(said: list[int], proposed: list[int]) -> None:
    it = given_only()
    it.proposals.open(0, [X], given=TEXT)
    for token in said[:-1]:
        it.run({0: token})
    assert it.run({0: said[-1]}) == {0: proposed}


def test_the_nearest_place_counts_within_reach() -> None:
    repeated = [50, *[1, 2, 3, 4, 60], *[1, 2, 3, 4, 61]]
    it = given_only()
    it.proposals.open(0, [X], given=repeated)
    for token in (70, 1, 2, 3):
        it.run({0: token})
    assert it.run({0: 4}) == {0: [60, 1, 2, 3]}
    for distance, proposed in ((1024, [9, -1, -1, -1]), (1025, NONE)):
        it.proposals.open(0, [X], given=[50] * distance + [1, 2, 3, 4, 9])
        for token in (70, 1, 2, 3):
            it.run({0: token})
        assert it.run({0: 4}) == {0: proposed}


class Following:
    """The rule, in words of its own: where the text goes on, or None outside."""

    def __init__(self, text: Sequence[int]) -> None:
        self.text, self.place, self.outside = list(text), 0, list[int]()

    def append(self, token: int) -> None:
        if not self.outside and self.text[self.place : self.place + 1] == [token]:
            self.place += 1
            return
        self.outside.append(token)
        if len(self.outside) < 4:
            return
        for start in range(self.place, min(len(self.text) - 4, self.place + 1024) + 1):
            if self.text[start : start + 4] == self.outside[-4:]:
                self.place, self.outside = start + 4, []
                return

    def next(self, count: int) -> list[int]:
        found = [] if self.outside else self.text[self.place : self.place + count]
        return found + [-1] * (count - len(found))


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_rule_on_random_edits(seed: int) -> None:
    rng = random.Random(seed)
    kinds = rng.choice([4, 12, 200])
    text = [rng.randrange(kinds) for _ in range(120)]
    said = list(text)
    for _ in range(rng.randrange(6)):
        at = rng.randrange(len(said))
        said[at : at + rng.randrange(5)] = [rng.randrange(kinds) for _ in range(rng.randrange(5))]
    it, following = given_only(), Following(text)
    it.proposals.open(0, [X], given=text)
    while said:
        count = rng.randint(1, 5)
        for token in said[:count]:
            following.append(token)
        assert it.run({0: said[:count]}) == {0: following.next(4)}
        del said[:count]


def test_before_what_the_others_propose() -> None:
    it = Iterations(given=True)
    it.proposals.set_guided(False)
    prompt = [41, 70, 71, 40, Z]
    it.proposals.open(0, prompt, given=[40, 41])
    assert it.run({0: 40}) == {0: [41, 70, 71, 40]}  # n-grams behind it
    it.proposals.open(0, prompt, given=[40, 41])
    assert it.run({0: 41}) == {0: [70, 71, 40, Z]}  # and in its place once it is left
    it.proposals.open(0, [], given=[X, Y])
    assert it.run({0: X}, {0: compiled(FORCED).matcher()}) == {
        0: [Y, -1, -1, -1]
    }  # nothing is forced behind drafts
    it.proposals.open(0, [], given=[Y])
    assert it.run({0: X}, {0: compiled(FORCED).matcher()}) == {0: [Y, Z, -1, -1]}
    assert it.proposals.counters().tokens == {"given": 2, "forced": 2, "ngram": 3 + 4}


def test_the_grammar_cuts_it() -> None:
    a, c = 3 + ord("a"), 3 + ord("c")
    it = given_only()
    for slot in (0, 1):
        it.proposals.open(slot, [], given=[X, Y, Z, c, X])
    assert it.run({0: X, 1: X}, {0: compiled(FORCED).matcher()}) == {0: [Y, Z, -1, -1], 1: [Y, Z, c, X]}
    it.proposals.set_guided(False)
    assert it.run({0: Y}) == {0: [Z, c, X, -1]}
    it.proposals.set_guided(True)
    assert it.run({0: Z}) == {0: NONE}
    it.proposals.open(2, [], given=[a, a, a])
    assert it.run({2: a}, {2: compiled(Guide.regex("ab+")).matcher()}) == {2: NONE}
    assert it.state.status(0) == it.state.status(2) == ("", "")


def test_a_request_that_goes_on_is_where_it_was() -> None:
    it = given_only()
    for said, proposed in (
        ([40, 41], [43, 44, 45, 46]),
        ([40, 99, 41], NONE),
        ([99, 41, 42, 43, 44], NONE),
        ([99, 43, 44, 45], [46 + 1, 48, 49, 50]),
    ):
        it.proposals.open(0, [X, Y, *said], given=TEXT, num_answered=len(said))
        token = 46 if said[-1] == 45 else 42
        assert it.run({0: token}) == {0: proposed}
    with pytest.raises(ValueError, match="can't have 3 of 2 tokens"):
        it.proposals.open(0, [X, Y], given=TEXT, num_answered=3)


def test_a_reused_slot_has_its_own_text() -> None:
    """A text counts from the first push after it was opened: what was pushed before keeps the old one."""
    it = given_only()
    it.proposals.open(0, [], given=[40, 41])
    it.begin([0])
    it.proposals.open(0, [], given=[40, 50])
    assert it.finish({0: 40}) == {0: [41, -1, -1, -1]}
    assert it.run({0: 40}) == {0: [50, -1, -1, -1]}
    it.proposals.open(0, [])
    assert it.run({0: 40}) == {0: NONE}


def test_what_can_not_be_given() -> None:
    size = small_vocabulary().vocab_size
    it = given_only()
    for token in (-1, size):
        with pytest.raises(InputError, match=f"token id {token}; ids of this model are 0 to {size - 1}"):
            it.proposals.open(0, [X], given=[X, token])
    with pytest.raises(ValueError, match="slot 3 is out of range"):
        it.proposals.open(3, [X], given=[X])
    with pytest.raises(InputError, match=r"Speculation\.given\(\)"):
        Iterations().proposals.open(0, [X], given=[X])
