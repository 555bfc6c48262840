"""What every grammar backend of the registry promises (docs/adding-a-grammar.md), over more than a hundred
guides.
"""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import pytest

from support.grammar.grammars import (
    END,
    PIECES,
    CountdownMatcher,
    allowed,
    backend,
    compiled,
    compiled_by,
    new_row,
    pick,
    small_vocabulary,
)
from support.grammar.guides import GUIDES
from support.grammar.matcher_contract import Contract
from weft import registry
from weft.errors import GuideError, GuideStateError
from weft.grammar import Backend, Guide, GuideCompiler, Matcher, wrap_matcher

VOCAB = small_vocabulary().vocab_size
STEPS = 16


def make(entry: tuple[str, Any]) -> Guide:
    kind, argument = entry
    guide: Guide = getattr(Guide, kind)() if argument is None else getattr(Guide, kind)(argument)
    return guide


@pytest.fixture(scope="module", params=registry.names("grammars"))
def made(request: pytest.FixtureRequest) -> Backend:
    made: Backend = registry.load("grammars", request.param)(small_vocabulary())
    return made


def mask(matcher: Matcher) -> np.ndarray:
    row = new_row()
    row[:] = -1
    matcher.fill(row)
    return row


@pytest.fixture(params=range(len(GUIDES)), ids=lambda i: f"{GUIDES[i][0]}-{i}")
def guide(request: pytest.FixtureRequest) -> Guide:
    return make(GUIDES[request.param])


def test_there_are_enough_guides() -> None:
    assert len(GUIDES) >= 100


def test_a_walk_keeps_the_contract(made: Backend, guide: Guide) -> None:
    Contract(compiled_by(made, guide).matcher, small_vocabulary()).walk(
        random.Random(zlib.crc32(guide.source.encode())), STEPS
    )


def test_native_equals_python(guide: Guide) -> None:
    """The same walk natively and through Python: the same bits, the same answers."""
    rng = random.Random(5)
    native, python = (compiled(guide, native=native).matcher() for native in (True, False))
    for _ in range(STEPS):
        assert native.fill(new_row()) == python.fill(new_row())
        np.testing.assert_array_equal(mask(native), mask(python))
        draft = [rng.randrange(3, 259) for _ in range(3)]
        assert native.validate(draft) == python.validate(draft)
        token = pick(allowed(mask(native)), rng)
        assert native.accept(token) == python.accept(token)
        assert native.is_terminated() == python.is_terminated()
        if rng.random() < 0.3:
            native.rollback(1)
            python.rollback(1)


@pytest.mark.parametrize("entry", GUIDES[::10], ids=lambda entry: entry[0])
def test_forks_resets_and_ends(made: Backend, entry: tuple[str, Any]) -> None:
    contract = Contract(compiled_by(made, make(entry)).matcher, small_vocabulary())
    contract.forks_and_resets(random.Random(3))
    contract.ends_and_takes_the_end_back(random.Random(11))


def test_forced_tokens_spell_what_must_follow(made: Backend) -> None:
    matcher = compiled_by(made, Guide.choice(["12", "1200"])).matcher()
    assert matcher.forced(4) == [3 + 256 + PIECES.index(b"12")]


def test_forced_tokens_stop_where_there_is_a_choice(made: Backend) -> None:
    bytes_only = compiled_by(made, Guide.regex("x(y|z)w")).matcher()
    assert bytes_only.forced(0) == []
    assert bytes_only.forced(4) == [3 + ord("x")]
    assert bytes_only.accept(3 + ord("x"))
    assert bytes_only.forced(4) == []
    assert bytes_only.accept(3 + ord("z"))
    assert bytes_only.forced(4) == [3 + ord("w")]
    assert not bytes_only.is_terminated()


@pytest.mark.parametrize(
    "name",
    [
        name if name == "auto" else pytest.param(name, marks=pytest.mark.slow)  # each starts a process
        for name in registry.names("grammars")
    ],
)
def test_guides_of_strangers_are_tried_with_it(name: str) -> None:
    guide = Guide.choice(["abc"])
    compiled_by(registry.load("grammars", name)(small_vocabulary()), guide)  # skips where it has no choices
    with GuideCompiler(small_vocabulary(), backend=name, untrusted=True) as compiler:
        matcher = compiler.compile(guide).matcher()
    assert matcher.accept(3 + ord("a"))


def test_errors_have_a_text(made: Backend) -> None:
    matcher = compiled_by(made, Guide.choice(["abc"])).matcher()
    assert matcher.accept(3 + ord("a"))
    row = mask(matcher)
    with pytest.raises(GuideStateError, match="rollback"):
        matcher.rollback(5)
    with pytest.raises(GuideStateError, match="shorter than the vocabulary"):
        matcher.fill(np.zeros(3, dtype=np.int32))
    with pytest.raises(GuideStateError, match="negative"):
        matcher.rollback(-1)
    np.testing.assert_array_equal(mask(matcher), row)
    for token in (-1, VOCAB, 2**30):
        assert not matcher.accept(token)


def test_wide_rows_end_in_zeros(made: Backend) -> None:
    matcher = compiled_by(made, Guide.choice(["abc"])).matcher()
    wide = np.full(16, -1, dtype=np.int32)
    matcher.fill(wide)
    np.testing.assert_array_equal(wide[:10], mask(matcher))
    assert not wide[10:].any()


@pytest.mark.parametrize("entry", [("ebnf", 'root ::= "a" missing'), ("json_schema", {"$ref": "#"})])
def test_guides_that_do_not_compile(made: Backend, entry: tuple[str, Any]) -> None:
    with pytest.raises(GuideError):
        made.compile(make(entry))


def test_a_python_matcher_keeps_the_contract() -> None:
    matcher = wrap_matcher(CountdownMatcher(3))
    first = mask(matcher)
    assert allowed(first) == [100, 101]
    assert matcher.validate([100, 101, 100, 100]) == 3
    assert not matcher.accept(7)
    assert matcher.accept(100)
    fork = matcher.fork()
    assert fork.accept(101)
    assert matcher.forced(4) == []
    matcher.rollback()
    np.testing.assert_array_equal(mask(matcher), first)
    assert matcher.validate([100, 100, 100, END, END]) == 4
    matcher.reset()
    with pytest.raises(
        GuideStateError, match=r"ValueError: can.t take back 2 of 0 tokens .*grammars\.py:\d+"
    ):
        matcher.rollback(2)


class Bare:
    """A matcher with no more than it needs."""

    def accept(self, token: int) -> bool:
        raise KeyError

    def fill(self, row: np.ndarray) -> bool:
        return False

    def rollback(self, count: int) -> None:
        return None

    def is_terminated(self) -> bool:
        return False


class Explains(Bare):
    def error(self) -> str:
        return "my own words"


def test_what_a_python_matcher_may_leave_out() -> None:
    matcher = wrap_matcher(Bare())
    assert not matcher.fill(new_row())
    for method, text in [("fork", "no fork"), ("reset", "no reset")]:
        with pytest.raises(GuideStateError, match=text):
            getattr(matcher, method)()
    with pytest.raises(GuideStateError, match="KeyError"):
        matcher.accept(1)
    with pytest.raises(GuideStateError, match=r"^my own words$"):
        wrap_matcher(Explains()).accept(1)
    with pytest.raises(GuideError, match="object can't be a matcher: a matcher needs a method accept"):
        wrap_matcher(object())  # type: ignore[arg-type]


def test_backends_share_nothing_between_matchers() -> None:
    compiled_guide = backend().compile(Guide.regex("(ab)*"))
    one, two = compiled_guide.matcher(), compiled_guide.matcher()
    assert one.accept(3 + ord("a"))
    assert allowed(mask(two)) != allowed(mask(one))
