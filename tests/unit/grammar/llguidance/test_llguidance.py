"""LLGuidance natively: the same as its Python, bit for bit; what its matchers would not survive."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.grammar.grammars import END, allowed, ids, new_row, pick, small_vocabulary
from support.grammar.guides import GUIDES
from weft import _core
from weft.config import package_model_path
from weft.errors import GuideError, GuideStateError, InterfaceError
from weft.grammar import Guide, Matcher, Vocabulary
from weft.grammar.llguidance import backend as adapter
from weft.grammar.llguidance.backend import LLGuidanceBackend

OTHER_END = 2


def mask(matcher: Matcher) -> np.ndarray:
    row = new_row()
    matcher.fill(row)
    return row


def make(entry: tuple[str, Any]) -> Guide:
    kind, argument = entry
    guide: Guide = getattr(Guide, kind)() if argument is None else getattr(Guide, kind)(argument)
    return guide


@pytest.mark.parametrize("entry", GUIDES[::3], ids=lambda entry: entry[0])
def test_native_equals_python(backend: LLGuidanceBackend, entry: tuple[str, Any]) -> None:
    """The same walk natively and through LLMatcher: the same bits, the same answers."""
    rng = random.Random(7)
    guide = make(entry)
    ours = backend.compile(guide).matcher()
    theirs = adapter.python_matcher(small_vocabulary(), *adapter.translated(guide))
    assert not theirs.get_error()
    taken = 0
    for _ in range(16):
        row = mask(ours)
        np.testing.assert_array_equal(row, np.frombuffer(theirs.compute_bitmask(), dtype=np.int32))
        draft = [rng.randrange(3, 259) for _ in range(3)]
        assert ours.validate(draft) == theirs.validate_tokens(draft)
        token = pick(allowed(row), rng)
        assert ours.accept(token)
        if token == END:
            assert theirs.is_accepting()
            break
        assert theirs.consume_token(token)
        taken += 1
        if rng.random() < 0.3:
            back = rng.randint(1, taken)
            ours.rollback(back)
            assert theirs.rollback(back)
            taken -= back


def test_a_refused_token_does_not_kill_a_matcher(backend: LLGuidanceBackend) -> None:
    matcher = backend.compile(Guide.regex("ab*")).matcher()
    assert matcher.accept(3 + ord("a"))
    row = mask(matcher)
    for token in (3 + ord("x"), 1, 299, -1, 300):
        assert not matcher.accept(token)
    assert matcher.validate([3 + ord("b"), 3 + ord("x")]) == 1
    np.testing.assert_array_equal(mask(matcher), row)
    with pytest.raises(GuideStateError, match="rollback of 2 tokens; only 1 were taken"):
        matcher.rollback(2)
    np.testing.assert_array_equal(mask(matcher), row)


def test_a_mask_is_never_that_of_a_text_that_was_taken_back() -> None:
    """LLGuidance keeps its last mask, and takes two texts of one shape for the same (a key, a value)."""
    vocabulary = Vocabulary.from_huggingface(package_model_path())
    compiled = LLGuidanceBackend(vocabulary).compile(Guide.json())
    text = [vocabulary.tokens.index(token) for token in (b'{"', b"b", b"ap", b'":', b' "', b"shipped")]
    words = -(-vocabulary.vocab_size // 32)

    def fill(matcher: Matcher) -> np.ndarray:
        row = np.zeros(words, dtype=np.int32)
        matcher.fill(row)
        return row

    fresh = compiled.matcher()
    expected = []
    for token in text:
        expected.append(fill(fresh))
        assert fresh.accept(token)
    expected.append(fill(fresh))
    rng = random.Random(0)
    matcher = compiled.matcher()
    for _ in range(60):
        for token, row in zip(text, expected, strict=False):
            drafted = 0
            filled = fill(matcher)
            np.testing.assert_array_equal(filled, row)
            for _ in range(rng.randint(0, 3)):
                allowed = np.unpackbits(filled.view(np.uint8), bitorder="little").nonzero()[0]
                if not matcher.accept(rng.choice(allowed.tolist())):
                    break
                drafted += 1
                filled = fill(matcher)
            matcher.rollback(drafted)
            assert matcher.accept(token)
        np.testing.assert_array_equal(fill(matcher), expected[-1])
        matcher.reset()


@pytest.mark.parametrize("entry", GUIDES[::5], ids=lambda entry: entry[0])
def test_what_ended_leaves_no_trace(backend: LLGuidanceBackend, entry: tuple[str, Any]) -> None:
    """Matchers begin with what those that ended found of the lexer; their masks are those of a new compile."""
    rng = random.Random(3)
    used = backend.compile(make(entry))
    for _ in range(8):
        new, later = backend.compile(make(entry)).matcher(), used.matcher()
        for _ in range(rng.randint(1, 12)):
            row = mask(new)
            np.testing.assert_array_equal(mask(later), row)
            token = pick(allowed(row), rng, end_rarely=rng.random() < 0.5)
            assert new.accept(token) and later.accept(token)
            if token == END:
                break
        if rng.random() < 0.5:
            later = later.fork()


def test_a_long_text_does_not_fail_for_the_states_of_its_beginning() -> None:
    """Nor for those that other texts found: a matcher begins anew where its lexer knows too many."""
    vocabulary = small_vocabulary()
    view = adapter._view(vocabulary)

    def grammar(max_states: int) -> _core.LlguidanceGrammar:
        limits = _core.LlguidanceLimits(max_lexer_states=max_states)
        return _core.LlguidanceGrammar(view, "regex", "(a|b)*a(a|b){14}", limits)

    def texts(grammar: _core.LlguidanceGrammar, seed: int) -> Iterator[np.ndarray]:
        rng, matcher = random.Random(seed), grammar.matcher()
        for _ in range(3000):
            yield mask(matcher)
            assert matcher.accept(rng.choice(ids("ab")))
            if rng.random() < 0.1:
                matcher.rollback(1)

    for seed in range(3):
        for bounded, free in zip(
            texts(few := grammar(4000), seed), texts(grammar(250_000), seed), strict=True
        ):
            np.testing.assert_array_equal(bounded, free)
        assert mask(few.matcher()).any()
    with pytest.raises(GuideStateError, match="too many states"):
        list(texts(grammar(100), 0))


def test_several_end_tokens() -> None:
    tokens = small_vocabulary().tokens
    vocabulary = Vocabulary.from_tokens(tokens, end_ids=[END, OTHER_END], special_ids=[1])
    matcher = LLGuidanceBackend(vocabulary).compile(Guide.regex("ab?")).matcher()
    assert not matcher.accept(OTHER_END)
    assert matcher.accept(3 + ord("a"))
    assert {END, OTHER_END} < set(allowed(mask(matcher)))
    for end in (END, OTHER_END):
        assert matcher.accept(end)
        assert matcher.is_terminated()
        assert allowed(mask(matcher)) == [END, OTHER_END]
        assert not matcher.accept(end)
        fork = matcher.fork()
        matcher.rollback(1)
        assert not matcher.is_terminated()
        assert fork.is_terminated()
    assert matcher.accept(3 + ord("b"))
    assert allowed(mask(matcher)) == [END, OTHER_END]


def test_special_tokens_are_named_by_number(backend: LLGuidanceBackend) -> None:
    matcher = backend.compile(Guide.lark('start: /[a-z]*/ <[1]> "x"')).matcher()
    plain = mask(matcher)
    assert matcher.accept(3 + ord("a"))
    assert {1, 2} & set(allowed(mask(matcher))) == {1}
    assert matcher.accept(1)
    assert allowed(mask(matcher)) == [3 + ord("x")]
    matcher.rollback(2)
    np.testing.assert_array_equal(mask(matcher), plain)


def test_special_tokens_are_named_as_the_tokenizer_does() -> None:
    """Outside of strings, regexes, comments and schemas, where they are text."""
    names = {"<|call|>": 1, "<pad>": 2, "[OTHER]": 2, "</s>": END}
    tokens = small_vocabulary().tokens
    vocabulary = Vocabulary.from_tokens(tokens, end_ids=[END], special_ids=[1, 2], special_names=names)
    grammar = (
        'start: "<pad>" /<pad>[\\/]?/ <|call|> body // not this <unknown>\n'
        '# nor <this>\nbody: %json {"enum": ["<pad>", "\\"<|call|>"]} <pad>'
    )
    text = [3 + byte for byte in b"<pad><pad>/"]
    answer = [1, *(3 + byte for byte in b'"<pad>"'), 2, END]
    backend = LLGuidanceBackend(vocabulary)
    for same in (grammar, grammar.replace("<|call|>", "<[1]>", 1)):
        assert backend.compile(Guide.lark(same)).matcher().validate(text + answer) == len(text + answer)
    with pytest.raises(
        GuideError, match=r"<unknown> is not a special token .* it has </s>, <pad>, <\|call\|>; "
    ):
        backend.compile(Guide.lark('start: <unknown> "x"'))


def test_a_name_without_names(backend: LLGuidanceBackend) -> None:
    with pytest.raises(
        GuideError, match=r"<\|unknown\|> is not a special token of this tokenizer; give a token's number"
    ):
        backend.compile(Guide.lark('start: <|unknown|> "x"'))


def test_an_end_token_that_a_grammar_names_is_an_end_all_the_same(backend: LLGuidanceBackend) -> None:
    matcher = backend.compile(Guide.lark('start: <[0-5]>+ "x"')).matcher()
    assert END not in allowed(mask(matcher))
    assert not matcher.accept(END)


def test_an_interface_that_is_not_the_expected_one(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter.check_interface.cache_clear()
    monkeypatch.setattr(adapter._core, "llguidance_bind", lambda *_: "a function is missing")
    try:
        with pytest.raises(InterfaceError, match=r"a function is missing.*llguidance 1\.9\.x; installed is"):
            LLGuidanceBackend(small_vocabulary())
    finally:
        adapter.check_interface.cache_clear()


def test_the_self_test_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert adapter._self_test() == ""
    real = adapter.python_matcher
    monkeypatch.setattr(adapter, "python_matcher", lambda vocabulary, kind, _: real(vocabulary, kind, "cab*"))
    assert adapter._self_test() == "its native mask is not Python's"
