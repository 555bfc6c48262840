"""What every kind of guide promises, at three sizes of vocabulary: free text before a guide, matchers of a user's own,
programs, tags, tools, Lark, and answers that close. And what is a matter of matchers in Python alone.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from typing import get_args

import numpy as np
import pytest

from support.grammar.grammars import END, CountdownMatcher, allowed, new_row, small_vocabulary, vocabulary
from support.grammar.guide_kinds import KINDS, NAMED, NUMBER, kinds
from support.grammar.guides import GUIDES
from support.grammar.matcher_contract import Contract
from support.grammar.wrong_matchers import WRONG
from weft.errors import GuideError, GuideStateError
from weft.grammar import Guide, GuideCompiler, Matcher, Opening, wrap_matcher
from weft.grammar.guide import GuideKind
from weft.grammar.kinds.closing import closing_matcher

SIZES = [300, 32_000, pytest.param(131_072, marks=pytest.mark.slow)]
ROOM = 24
# Whole at the limit: guides that would go on for ever.
CLOSING: dict[str, Callable[[], Guide]] = {
    "closing, json": Guide.json,
    "closing, schema": lambda: Guide.json_schema(NUMBER),
    "closing, regex": lambda: Guide.regex(r"[a-z ]+\.( [A-Z][a-z]+)+!"),
    "closing, ebnf": lambda: Guide.ebnf('root ::= "[" root* "]" | "12"'),
}


@pytest.fixture(scope="module", params=SIZES)
def compiler(request: pytest.FixtureRequest) -> Iterator[GuideCompiler]:
    with GuideCompiler(vocabulary(request.param)) as made:
        yield made


@pytest.fixture(params=[*KINDS, *CLOSING])
def contract(request: pytest.FixtureRequest, compiler: GuideCompiler) -> Contract:
    words = compiler.vocabulary
    made = {**kinds(words.end_ids), **CLOSING}[request.param]()
    compiled = compiler.compile(made)
    if request.param in CLOSING:
        compiled = compiler.submit_closing(compiler.submit(made)).result()
        return Contract(lambda: closing_matcher(compiled, Opening(room=ROOM)), words)
    return Contract(compiled.matcher, words, frozenset([NAMED]))


def test_a_walk_keeps_the_contract(contract: Contract, request: pytest.FixtureRequest) -> None:
    size = contract.vocabulary.vocab_size
    for walk in range(4 if size == 300 else 1):
        contract.walk(random.Random(zlib.crc32(request.node.name.encode()) + walk), steps=14)


def test_forks_and_resets(contract: Contract) -> None:
    contract.forks_and_resets(random.Random(3))


def test_it_ends_and_takes_the_end_back(contract: Contract, request: pytest.FixtureRequest) -> None:
    closes = "closing" in request.node.name
    contract.ends_and_takes_the_end_back(random.Random(11), within=ROOM if closes else 300)


def test_every_kind_of_guide_is_tried() -> None:
    """Two come with a grammar of XGrammar's own, and tools become structural tags (`test_tool_style.py`); what else
    only `GUIDES` has, `test_grammar.py` tries."""
    tried = {make().kind for make in KINDS.values()} | {kind for kind, _ in GUIDES} - {"json"}
    assert tried == set(get_args(GuideKind)) - {"grammar", "compiled", "tools"}


@pytest.mark.parametrize("make", WRONG)
def test_a_walk_finds_what_is_wrong(make: Callable[[int], CountdownMatcher]) -> None:
    contract = Contract(lambda: wrap_matcher(make(5)), small_vocabulary())
    with pytest.raises(AssertionError):
        contract.walk(random.Random(1), steps=14)


def mask(matcher: Matcher) -> np.ndarray:
    row = new_row()
    row[:] = -1
    matcher.fill(row)
    return row


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


def test_a_guide_within_a_guide_may_be_ones_own() -> None:
    with GuideCompiler(small_vocabulary()) as compiler:
        matcher = compiler.compile(Guide.after("x", Guide.matcher(OnlyForward))).matcher()  # type: ignore[arg-type]
    text = [3 + ord("a"), 3 + ord("x"), 100, 101, 100, END]
    assert matcher.validate(text) == len(text)
