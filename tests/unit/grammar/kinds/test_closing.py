"""What it costs to end, and matchers that end in time, against what XGrammar's matchers say of the same guides."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.grammar.grammars import (
    END,
    CountdownMatcher,
    allowed,
    backend,
    compiled,
    new_row,
    pick,
    small_vocabulary,
)
from support.grammar.guides import GUIDES
from weft.errors import GuideError, GuideStateError
from weft.grammar import CompiledGuide, Guide, GuideCompiler, Matcher, Opening, Vocabulary
from weft.grammar.base import Closes
from weft.grammar.kinds.closing import closing_matcher
from weft.grammar.xgrammar.backend import XGrammarBackend

VOCABULARY = small_vocabulary()
LETTERS = b"abc"


def guide_of(entry: tuple[str, Any]) -> Guide:
    kind, argument = entry
    made: Guide = getattr(Guide, kind)() if argument is None else getattr(Guide, kind)(argument)
    return made


def tables(guide: CompiledGuide) -> Any:
    assert isinstance(guide, Closes)
    return guide.closing()


def needed(guide: CompiledGuide) -> int:
    """Tokens of the shortest answer, as the refusal of less says."""
    with pytest.raises(GuideError, match="needs") as refused:
        closing_matcher(guide, Opening(room=0))
    found = re.search(r"needs (\d+) tokens", str(refused.value))
    assert found is not None
    return int(found[1])


def mask(matcher: Matcher) -> list[int]:
    row = new_row()
    row[:] = -1
    matcher.fill(row)
    return allowed(row)


# -- the cost of ending


def random_grammar(rng: random.Random) -> str:
    """A few rules over a few letters; recursion stands behind a letter, or at the very beginning of its own rule."""
    names = ["root", "x", "y", "z"]

    def element() -> str:
        drawn = rng.random()
        if drawn < 0.45:
            return '"' + "".join(rng.choice("abc") for _ in range(rng.randint(1, 4))) + '"'
        if drawn < 0.6:
            return rng.choice(["[ab]", "[^a]", "[a-c]"]) + rng.choice(["", "?", "*", "+", "{2}", "{1,3}"])
        return rng.choice(names[1:]) + rng.choice(["", "", "?", "*", "{2,3}"])

    rules = []
    for name in names:
        alternatives = [
            " ".join([f'"{rng.choice("abc")}"', *(element() for _ in range(rng.randint(0, 3)))])
            for _ in range(rng.randint(1, 3))
        ]
        if rng.random() < 0.3:
            alternatives.append(f'{name} "{rng.choice("abc")}"')
        rules.append(f"{name} ::= {' | '.join(alternatives)}")
    return "\n".join(rules)


def bytes_to_end(matcher: Matcher, limit: int) -> int:
    """Fewest bytes to an end, by trying all; `limit` where there are more."""
    level = [matcher]
    for count in range(limit):
        if any(one.validate([END]) for one in level):
            return count
        following = []
        for one in level:
            for letter in LETTERS:
                if one.validate([3 + letter]):
                    fork = one.fork()
                    fork.accept(3 + letter)
                    following.append(fork)
        level = following[:400]
    return limit


def byte_backend() -> XGrammarBackend:
    """A vocabulary of bytes alone, so that tokens are bytes."""
    tokens = [b""] * 3 + [bytes([byte]) for byte in range(256)]
    return XGrammarBackend(Vocabulary.from_tokens(tokens, end_ids=[END], special_ids=[1, 2]), threads=1)


def test_the_cost_is_what_trying_all_texts_finds() -> None:
    rng, made, seen = random.Random(8), byte_backend(), 0
    while seen < 250:
        try:
            guide = made.compile(Guide.ebnf(random_grammar(rng)))
            known = tables(guide)
        except GuideError:  # no answer is finite, or a rule leads back to its own beginning
            continue
        matcher, text = guide.matcher(), b""
        for _ in range(6):
            cheapest, dearest, end = known.shortest(text)
            assert cheapest <= dearest
            if cheapest > 1000:
                break
            assert len(end) == cheapest
            assert matcher.validate([*(3 + byte for byte in end), END]) == len(end) + 1
            if cheapest <= 7:
                assert bytes_to_end(matcher, 7) == cheapest, (guide.guide.source, text)
                seen += 1
            letters = [letter for letter in LETTERS if matcher.validate([3 + letter])]
            if not letters:
                break
            letter = rng.choice(letters)
            matcher.accept(3 + letter)
            text += bytes([letter])


def test_what_has_no_token_is_not_written() -> None:
    tokens = [b"", b"a", b"b", b"bb"]
    made = XGrammarBackend(Vocabulary.from_tokens(tokens, end_ids=[0]), threads=1)
    guide = made.compile(Guide.regex("a(x|bbb)"))
    assert tables(guide).shortest(b"a") == (2, 2, b"bbb")
    assert needed(guide) == 4
    with pytest.raises(GuideError, match="known, 'abbb', needs 4 tokens"):
        closing_matcher(guide, Opening(room=3))
    # "c" leads to an end, but nothing can say it; "b" leads on for ever.
    lost = made.compile(Guide.ebnf('root ::= "a" x\nx ::= "c" | "b" x'))
    with pytest.raises(GuideError, match="can't be known"):
        closing_matcher(lost, Opening(room=100))


# -- matchers


def walks() -> Iterator[tuple[int, tuple[str, Any], int]]:
    for i, entry in enumerate(GUIDES):
        yield from ((i, entry, extra) for extra in ((0, 1, 7), (2, 4, 20))[i % 2])


@pytest.mark.parametrize(
    ("number", "entry", "extra"), list(walks()), ids=lambda v: str(v) if isinstance(v, int) else ""
)
def test_every_walk_ends_in_time(number: int, entry: tuple[str, Any], extra: int) -> None:
    """Whatever is picked; the mask permits exactly what accept takes, and no more than the guide's own."""
    guide, rng = compiled(guide_of(entry)), random.Random(number)
    room = needed(guide) + extra
    matcher, plain = closing_matcher(guide, Opening(room=room)), guide.matcher()
    taken: list[int] = []
    while not matcher.is_terminated():
        choices = mask(matcher)
        assert choices, (guide.guide, VOCABULARY.decode(taken))
        assert set(choices) <= set(mask(plain))
        tried = range(300) if len(taken) < 3 else rng.sample(range(300), 20)
        assert [t for t in tried if matcher.validate([t])] == [t for t in tried if t in choices]
        taken.append(pick(choices, rng))
        assert matcher.accept(taken[-1])
        assert plain.accept(taken[-1])
        assert len(taken) <= room
        if rng.random() < 0.2:
            back = rng.randint(1, len(taken))
            matcher.rollback(back)
            fork = matcher.fork()
            assert matcher.validate(taken[-back:]) == back
            assert all(matcher.accept(token) for token in taken[-back:])
            assert all(fork.accept(token) for token in taken[-back:])
            assert fork.is_terminated() or mask(fork) == mask(matcher)
    assert plain.is_terminated()


@pytest.mark.parametrize("entry", GUIDES[::9], ids=lambda entry: entry[0])
def test_one_token_less_than_it_needs_is_refused(entry: tuple[str, Any]) -> None:
    guide = compiled(guide_of(entry))
    least = needed(guide)
    with pytest.raises(GuideError, match=f"needs {least} tokens.*room for {least - 1}"):
        closing_matcher(guide, Opening(room=least - 1))
    matcher, count = closing_matcher(guide, Opening(room=least)), 0
    while not matcher.is_terminated():
        assert matcher.accept(mask(matcher)[0])
        count += 1
    assert count <= least


@pytest.mark.parametrize("entry", GUIDES[::9], ids=lambda entry: entry[0])
def test_far_from_the_limit_nothing_is_forbidden(entry: tuple[str, Any]) -> None:
    guide, rng = compiled(guide_of(entry)), random.Random(6)
    matcher, plain = closing_matcher(guide, Opening(room=200)), guide.matcher()
    for _ in range(40):
        rows = [new_row(), new_row()]
        assert matcher.fill(rows[0]) == plain.fill(rows[1])
        np.testing.assert_array_equal(*rows)
        if plain.is_terminated():
            break
        assert matcher.forced(3) == plain.forced(3)
        token = pick(allowed(rows[1]), rng)
        assert matcher.accept(token)
        assert plain.accept(token)


def test_near_the_limit_only_the_way_out_is_left() -> None:
    guide = compiled(Guide.regex("[a-z]+;done"))
    assert needed(guide) == 7
    matcher = closing_matcher(guide, Opening(room=10))
    assert len(mask(matcher)) == 26 + len([b"ab", b"abc", b"aa", b"true", b"null"])
    for spelled in b"xyz":
        assert matcher.accept(3 + spelled)
    assert not matcher.accept(3 + ord("x"))
    assert matcher.forced(9) == []
    for spelled in b";done":
        assert mask(matcher) in ([3 + spelled], [END])
        assert matcher.accept(3 + spelled)
    assert mask(matcher) == [END]


def test_rules_at_their_own_beginning() -> None:
    direct = compiled(Guide.ebnf('root ::= root "+" root | root "!" | "1"'))
    assert needed(direct) == 2
    matcher = closing_matcher(direct, Opening(room=6))
    assert all(matcher.accept(3 + byte) for byte in b"1!+")
    assert not matcher.validate([3 + ord("!")])
    assert matcher.accept(3 + ord("1"))
    assert mask(matcher) == [END, 3 + ord("!")]
    through_another = compiled(Guide.ebnf('root ::= x "a" | "b"\nx ::= root "c" | "d"'))
    with pytest.raises(GuideError, match="can't be known: a rule of the grammar is left-recursive"):
        closing_matcher(through_another, Opening(room=99))


def test_a_text_that_can_be_read_in_many_ways_ends_too() -> None:
    """Beyond some number of readings it follows the end that it knows."""
    guide = compiled(Guide.regex("(a|b)*a(a|b){300}c"))
    room = needed(guide) + 500
    matcher, count = closing_matcher(guide, Opening(room=room)), 0
    while not matcher.is_terminated():
        choices = mask(matcher)
        letters = [token for token in choices if token in (3 + ord("a"), 3 + ord("b"))]
        assert matcher.accept(letters[count % len(letters)] if letters else choices[0])
        count += 1
    assert count <= room


class PlainCompiled:
    """A compiled guide of somebody who knows nothing of ends."""

    guide = Guide.matcher(lambda: CountdownMatcher(3))
    vocab_size = 300
    memory_bytes = 0


UNKNOWN = [
    (Guide.matcher(lambda: CountdownMatcher(3)), "it is of the kind 'matcher'"),
    (
        Guide.structural_tag(
            {
                "type": "structural_tag",
                "format": {
                    "type": "triggered_tags",
                    "triggers": ["<f"],
                    "tags": [
                        {"begin": "<f>", "content": {"type": "regex", "pattern": "[0-9]"}, "end": "</f>"}
                    ],
                },
            }
        ),
        "it has tags or tokens that begin something else",
    ),
]


@pytest.mark.parametrize(("guide", "message"), UNKNOWN)
def test_guides_whose_ends_are_not_known(guide: Guide, message: str) -> None:
    with GuideCompiler(VOCABULARY) as compiler:
        future = compiler.submit_closing(compiler.submit(guide))
        with pytest.raises(GuideError, match=f"can't be known: {message}"):
            future.result(60)


def test_a_library_that_tells_no_ends_is_named() -> None:
    with GuideCompiler(VOCABULARY, backend="llguidance") as compiler:
        future = compiler.submit_closing(compiler.submit(Guide.regex("[0-9]+")))
        with pytest.raises(GuideError, match="can't be known: llguidance compiled it"):
            future.result(60)


def test_the_compiler_works_ends_out_behind_the_guide() -> None:
    with GuideCompiler(VOCABULARY) as compiler:
        guide = Guide.ebnf('root ::= "[" [0-9]* "]"')
        future = compiler.submit(guide)
        before, text = future.result(60).memory_bytes, sys.getsizeof(guide.source)
        closing = compiler.submit_closing(future)
        assert closing.result(60) is future.result()
        assert compiler.cache.num_bytes - text == future.result().memory_bytes > before
        failed = compiler.submit_closing(compiler.submit(Guide.ebnf('root ::= "a" missing')))
        with pytest.raises(GuideError, match="missing"):
            failed.result(60)
        late = compiler.submit(guide)
    with pytest.raises(GuideError, match="closed"):
        compiler.submit_closing(late).result(60)


def test_errors_have_a_text() -> None:
    matcher = closing_matcher(compiled(Guide.regex("[a-z]+")), Opening(room=9))
    matcher.accept(3 + ord("a"))
    for count, message in ((2, "more tokens than were taken"), (-1, "negative")):
        with pytest.raises(GuideStateError, match=message):
            matcher.rollback(count)
    with pytest.raises(GuideStateError, match="shorter than the vocabulary"):
        matcher.fill(np.zeros(3, dtype=np.int32))
    assert not any(matcher.accept(token) for token in (-1, 300, 2**30))
    matcher.reset()
    assert END not in mask(matcher)
    with pytest.raises(GuideError, match="not known"):
        closing_matcher(compiled(Guide.regex("[a-z]+")), Opening())


def test_a_guide_over_a_compiled_grammar_closes_too() -> None:
    inner = compiled(Guide.json())
    guide = backend().compile(Guide.of(inner.compiled))  # type: ignore[attr-defined]
    assert needed(guide) == needed(inner)
    assert len(mask(closing_matcher(guide, Opening(room=needed(guide))))) == 1
