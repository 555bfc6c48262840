"""Lookahead's n-grams by slot, against plain lists; what the grammar makes of them, and sizes of requests."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from support.engine.lookahead_oracle import Pool
from support.engine.proposing import FORCED, Iterations, X, Y, Z
from support.grammar.grammars import compiled
from support.products import pairwise
from weft import LLM, Speculation
from weft.config import Lookahead
from weft.errors import InputError
from weft.grammar import Guide
from weft.guided.proposals import Sources


def iterations(sizes: Lookahead, **options: object) -> Iterations:
    return Iterations(forced=False, ngram=None, lookahead=sizes, **options)


def say(it: Iterations, slot: int, window: Sequence[int], position: int) -> None:
    """What the device leaves of an iteration that began with the token at `position`."""
    assert it.proposals.window_host is not None
    it.proposals.window_host[slot] = torch.tensor([*window, position])


@pairwise
@pytest.mark.parametrize("window", [1, 4, 16])
@pytest.mark.parametrize("ngram", [2, 3, 5])
@pytest.mark.parametrize("verification", [1, 3])
@pytest.mark.parametrize("alphabet", [2, 6, 200])
def test_drafts_are_those_of_plain_lists(window: int, ngram: int, verification: int, alphabet: int) -> None:
    rng, sizes = random.Random(window * ngram), Lookahead(window, ngram, verification)
    it = iterations(sizes)
    prompt = [3 + rng.randrange(alphabet) for _ in range(rng.randrange(1, 20))]
    pool = Pool(sizes, prompt)
    it.proposals.open(1, prompt, 4)
    assert it.proposals.first_window(prompt) == pool.window
    say(it, 1, [7] * window, 10**6)  # of whoever had the slot before
    seen = 0
    for turn in range(200):
        new = [3 + rng.randrange(alphabet) for _ in range(rng.randrange(1, 4))]
        position = len(pool.text) - 1
        pool.accept(new)
        if turn:
            pool.follow([3 + rng.randrange(alphabet) for _ in range(window)])
            say(it, 1, pool.window, position)
        num_drafts = rng.choice([4, 4, 1])
        expected = pool.drafts(num_drafts)
        got = it.run({1: new}, num_drafts=num_drafts)[1]
        assert got == expected + [-1] * (4 - len(expected))
        seen += len(expected)
    assert seen > 100 or alphabet > 6


def test_an_iteration_without_drafts_reads_no_window() -> None:
    sizes = Lookahead(1, 3, 4)
    it = iterations(sizes)
    it.proposals.open(0, [X], 9)
    assert it.run({0: Y})[0] == [-1] * 4
    say(it, 0, [Z], 1)
    it.run({0: 40}, num_drafts=0)  # what stands there is of an iteration before
    say(it, 0, [Y], 2)
    assert it.run({0: X})[0] == [Y, 40, -1, -1]  # of the text; the column is X Y by now
    say(it, 0, [Z], 3)
    it.run({0: 41})
    say(it, 0, [41], 4)
    assert it.run({0: Y})[0][:2] == [Z, 41]


def test_the_grammar_chooses_among_them() -> None:
    it = iterations(Lookahead(2, 3, 4))
    guide = compiled(Guide.regex("x(yz|zz)*"))
    it.proposals.open(0, [X, Y, Z, X, Y, Y, X, Z, Y, 40], 9)
    it.proposals.open(1, [X, Y, Z, X, Y, Y, X, Z, Y, 40], 9)
    drafts = it.run({0: X, 1: X}, attach={0: guide.matcher()})
    assert drafts[0] == [Y, Z, -1, -1]  # the newest, z y, is refused at y, and y y at its second
    assert drafts[1] == [Z, Y, -1, -1]
    it.proposals.set_guided(False)
    it.proposals.open(0, [X, Y, Z, X, Z, Y, 40], 9)
    assert it.run({0: X}, attach={0: guide.matcher()})[0] == [Z, Y, -1, -1]


def test_it_goes_on_after_forced_text() -> None:
    it = Iterations(forced=True, ngram=None, lookahead=Lookahead(1, 3, 1))
    it.proposals.open(0, [Z, 3 + ord("a"), X], 9)
    assert it.run({0: X}, attach={0: compiled(FORCED).matcher()})[0] == [Y, Z, 3 + ord("a"), X]
    assert it.proposals.origins(0, 1, 4) == ["forced", "forced", "lookahead", "lookahead"]
    assert it.proposals.counters().tokens == {"forced": 2, "lookahead": 2}


def test_a_requests_own_sizes() -> None:
    it = iterations(Lookahead(4, 5, 4))
    it.proposals.open(0, [X, Y, Z, 40, 41, X, Z], 9, lookahead=Lookahead(1, 3, 1))
    it.proposals.open(1, [X, Y, Z, 40, 41, X, Z], 9)
    drafts = it.run({0: X, 1: X})
    assert drafts[0] == [Z, X, -1, -1] and drafts[1] == [Y, Z, 40, 41]
    for sizes in (Lookahead(5, 3, 1), Lookahead(4, 6, 1), Lookahead(4, 3, 5)):
        with pytest.raises(ValueError, match="lookahead's"):
            it.proposals.open(0, [X], 9, lookahead=sizes)


@pytest.mark.parametrize(
    "sizes",
    [(0, 3, 4), (17, 3, 4), (4, 1, 4), (4, 10, 4), (4, 3, 0), (4, 3, 33), (4.0, 3, 4), (True, 3, 4)],
)
def test_sizes_that_can_not_be_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match=r"lookahead's (window|ngram|verification) is"):
        Lookahead(*sizes)
    with pytest.raises(InputError, match="lookahead's"):
        Speculation.lookahead(*sizes)


def test_what_goes_beside_it() -> None:
    assert Speculation.lookahead(5, 4, 2).lookahead_sizes == Lookahead(5, 4, 2)
    assert Speculation.lookahead(5, 4, 2).max_draft_tokens == 3
    assert Speculation.named("lookahead", num_draft_tokens=5).lookahead_sizes == Lookahead(ngram=6)
    assert Speculation.ngram().lookahead_sizes is None
    assert Sources(forced=True, lookahead=Lookahead()).places == [1, 3]
    behind = Speculation.given(Speculation.forced(Speculation.lookahead(2, 4, 1)))
    assert behind.lookahead_sizes == Lookahead(2, 4, 1) and behind.max_draft_tokens == 3
    with pytest.raises(InputError, match="ahead is"):
        Speculation(("ngram",), 3, ahead=Lookahead())
    for drafters in (("lookahead", "eagle3"), ("ngram", "lookahead")):
        with pytest.raises(InputError, match="lookahead drafts with the target itself"):
            LLM(speculation=Speculation(drafters, 3))
    with pytest.raises(InputError, match="put it first"):
        LLM(speculation=Speculation(("eagle3", "lookahead"), 3))
