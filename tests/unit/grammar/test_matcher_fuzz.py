"""Random calls of every backend's matchers against the replaying oracle; tools/fuzz_matchers.py is the long version."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.grammar.fuzz_cases import backends, cases, compiled
from support.grammar.grammars import CountdownMatcher, small_vocabulary
from support.grammar.guide_kinds import KINDS
from support.grammar.matcher_fuzz import Difference, MatcherFuzz
from support.grammar.state_fuzz import Decoding
from support.grammar.wrong_matchers import WRONG
from weft import registry
from weft.grammar import Guide, GuideCompiler


@pytest.mark.parametrize("backend", backends())
def test_no_call_differs_from_the_oracle(backend: str) -> None:
    found = list(cases(backend))
    made = [
        (case, guide)
        for case in random.Random(1).sample(found, min(24, len(found)))
        if (guide := compiled(case))
    ]
    assert made

    @settings(max_examples=40, deadline=None, database=None, derandomize=True)
    @given(st.integers(0, len(made) - 1), st.randoms(use_true_random=False))
    def fuzz(number: int, rng: random.Random) -> None:
        case, guide = made[number]
        MatcherFuzz(guide, case.vocabulary, rng, case.is_native).run(40)

    fuzz()


@pytest.mark.parametrize("backend", backends())
def test_no_iteration_differs_from_the_oracle(backend: str) -> None:
    small = [case for case in cases(backend) if case.vocabulary is small_vocabulary()]
    guides = [
        guide for case in random.Random(2).sample(small, min(6, len(small))) if (guide := compiled(case))
    ]
    decoding = Decoding([[guide] for guide in guides], max_drafts=3, guided_drafts=True, seed=5, workers=2)
    for _ in range(60):
        decoding.iterate()
    assert decoding.state.num_failed == 0


def test_every_kind_of_guide_is_fuzzed() -> None:
    assert {make().kind for make in KINDS.values()} >= set(registry.GUIDES), (
        "give every kind of guide an example in tests/support/grammar/guide_kinds.py"
    )


@pytest.mark.parametrize("make", WRONG)
def test_the_oracle_finds(make: Callable[[int], CountdownMatcher]) -> None:
    guide = GuideCompiler(small_vocabulary()).compile_part(Guide.matcher(lambda: make(6)))
    with pytest.raises(Difference, match=r"the oracle says|can't take back"):
        MatcherFuzz(guide, small_vocabulary(), random.Random(0), is_native=False).run(3000)


def test_llguidance_forgets_what_was_rolled_back() -> None:
    """The fuzz's first find: rows of the parser outlived a rollback, and later masks were of the text before it."""
    vocabulary = small_vocabulary()
    token = {text: i for i, text in enumerate(vocabulary.tokens)}
    guide = GuideCompiler(vocabulary, backend="llguidance").compile_part(Guide.json(max_whitespace=8))
    rows = np.zeros((3, -(-vocabulary.vocab_size // 32)), dtype=np.int32)
    matcher, other = guide.matcher(), guide.matcher()
    for text in (b"{", b" "):
        assert matcher.accept(token[text])
    matcher.fill(rows[0])
    assert matcher.accept(token[b"}"])
    matcher.rollback(3)
    for text in (b"[", b" "):
        assert matcher.accept(token[text]) and other.accept(token[text])
    matcher.fill(rows[1])
    other.fill(rows[2])
    np.testing.assert_array_equal(rows[1], rows[2])
