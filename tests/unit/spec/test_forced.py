"""Forced text: how it is spelled, and that a matcher's forced tokens are what must follow."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import xgrammar as xgr
from tokenizers import Tokenizer

from support.grammar.grammars import END, CountdownMatcher, allowed, backend, new_row, pick, small_vocabulary
from support.grammar.guides import GUIDES, SCHEMAS
from weft import _core
from weft.config import package_model_path
from weft.errors import GuideStateError
from weft.grammar import Guide, Matcher, Vocabulary, wrap_matcher
from weft.grammar.xgrammar.backend import CompiledXGrammar, XGrammarBackend, native_matcher
from weft.tiny import records


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(package_model_path() / "tokenizer.json"))


@pytest.fixture(scope="module")
def tiny() -> XGrammarBackend:
    return XGrammarBackend(Vocabulary.from_huggingface(package_model_path()), threads=1)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


def test_it_spells_as_the_tokenizer_does(tokenizer: Tokenizer, tiny: XGrammarBackend) -> None:
    texts = _core.TokenTexts(tiny.vocabulary.tokens)
    rng = random.Random(4)
    samples = []
    for _ in range(150):
        record = records.example(rng, rng.choice(["train", "heldout", "unseen"]))
        samples += [json.dumps(record.answer, ensure_ascii=False)[:200], *record.text.split(". ")]
        samples += [
            json.dumps(record.answer, indent=2)[:200],
            json.dumps(key) if (key := record.text[:9]) else "",
        ]
    same = sum(texts.encode(text.encode()) == encode(tokenizer, text) for text in samples)
    assert all(tiny.vocabulary.decode(texts.encode(text.encode())).decode() == text for text in samples)
    assert same >= 0.99 * len(samples), f"{same} of {len(samples)}"


def test_merges_by_rank_from_the_left() -> None:
    """Of "abab" the pair "ba" has the lowest id; of "aaa" the first two merge."""
    texts = _core.TokenTexts([b"", b"a", b"b", b"ba", b"ab", b"aa", b"aba"])
    assert texts.encode(b"abab") == [6, 2]
    assert texts.encode(b"aaa") == [5, 1]
    assert texts.encode(b"") == []


def test_characters_where_bytes_only_stand_in() -> None:
    """Sentencepiece numbers its bytes first and its characters last, and merges characters."""
    pieces = ["he", "ll", "llo", "\u4f60\u597d", "\u4f60", "\u597d", "h", "e", "l", "o"]
    tokens = [b"", *(bytes([byte]) for byte in range(256)), *(piece.encode() for piece in pieces)]
    texts = _core.TokenTexts(tokens)
    names = [
        pieces[i - 257] if i > 256 else bytes([i - 1])
        for i in texts.encode("hello\u4f60\u597d\u4f61".encode())
    ]
    assert names == ["he", "llo", "\u4f60\u597d", b"\xe4", b"\xbd", b"\xa1"]


def test_the_longest_token_where_a_byte_is_missing() -> None:
    texts = _core.TokenTexts([b"", b"ab", b"abc", b"c", b"de"])
    assert texts.encode(b"abcabdec") == [2, 1, 4, 3]
    assert texts.encode(b"abx") == [1]


def test_a_long_text_is_cut() -> None:
    texts = _core.TokenTexts([b"a", b"aa"])
    assert texts.encode(b"a" * 1000) == [1] * 128


def make(entry: tuple[str, Any]) -> Guide:
    kind, argument = entry
    guide: Guide = getattr(Guide, kind)() if argument is None else getattr(Guide, kind)(argument)
    return guide


def jump_bytes(matcher: xgr.GrammarMatcher) -> bytes:
    """Python's way to the text. It can't decode one that ends inside a character."""
    try:
        return matcher.find_jump_forward_string().encode()
    except UnicodeDecodeError as error:
        return bytes(error.object)


def mask(matcher: Matcher) -> np.ndarray:
    row = new_row()
    matcher.fill(row)
    return row


@pytest.mark.parametrize("entry", GUIDES, ids=lambda entry: entry[0])
def test_forced_tokens_must_follow(entry: tuple[str, Any]) -> None:
    """Along a walk, also from inside a forced text: a beginning of the text that must follow, taken token by
    token; the state does not change.
    """
    vocabulary = small_vocabulary()
    guide = backend().compile(make(entry))
    assert isinstance(guide, CompiledXGrammar)
    theirs = xgr.GrammarMatcher(guide.compiled)
    matcher = native_matcher(theirs, vocabulary)  # on the same state
    rng = random.Random(len(str(entry[1])))
    for _ in range(30):
        before, text = mask(matcher), jump_bytes(theirs)
        tokens = matcher.forced(8)
        assert text.startswith(vocabulary.decode(tokens))
        assert bool(tokens) <= bool(text)
        assert matcher.forced(1) == tokens[:1]
        assert matcher.forced(0) == []
        assert matcher.validate(tokens) == len(tokens)
        np.testing.assert_array_equal(mask(matcher), before)
        token = tokens[0] if tokens and rng.random() < 0.5 else pick(allowed(before), rng)
        assert matcher.accept(token)
        if matcher.is_terminated():
            assert matcher.forced(8) == []
            break


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name.startswith("object/")])
def test_required_keys_are_forced(tiny: XGrammarBackend, tokenizer: Tokenizer, name: str) -> None:
    """Blanks are free, so the text begins behind a quote; the quote at its end may be part of a longer token."""
    matcher = tiny.compile(Guide.json_schema(SCHEMAS[name], max_whitespace=8)).matcher()
    key = name.removeprefix("object/")
    quote, brace = encode(tokenizer, '"')[0], encode(tokenizer, "{")[0]
    assert matcher.accept(brace)
    assert matcher.accept(quote)
    spelled = encode(tokenizer, key)
    assert matcher.forced(16) == spelled
    if len(spelled) > 1:
        assert matcher.accept(spelled[0])
        assert matcher.forced(16) == spelled[1:]
        assert matcher.forced(1) == spelled[1:2]


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name.startswith("object/")])
def test_tidy_keys_are_forced_up_to_the_colon(tiny: XGrammarBackend, name: str) -> None:
    matcher = tiny.compile(Guide.json_schema(SCHEMAS[name])).matcher()
    text = f'{{"{name.removeprefix("object/")}":'
    tokens = matcher.forced(16)
    assert tiny.vocabulary.decode(tokens) == text.encode()
    assert matcher.validate(tokens) == len(tokens)


def test_the_rest_of_a_token_that_was_cut(tiny: XGrammarBackend, tokenizer: Tokenizer) -> None:
    matcher = tiny.compile(Guide.regex("the whole answer is (yes|no)")).matcher()
    for token in encode(tokenizer, "the wh"):
        assert matcher.accept(token)
    tokens = matcher.forced(20)
    assert tiny.vocabulary.decode(tokens) == b"ole answer is"


def test_it_ends_where_a_longer_token_may_stand(tiny: XGrammarBackend, tokenizer: Tokenizer) -> None:
    """ " date" is a token: who says it does not spell " da" first."""
    whole = tiny.compile(Guide.choice(["a date"])).matcher()
    assert whole.forced(8) == encode(tokenizer, "a date")
    split = tiny.compile(Guide.choice(["a da", "a date"])).matcher()
    assert split.forced(8) == encode(tokenizer, "a")


class Forcing(CountdownMatcher):
    """A matcher in Python that has something to force."""

    guess: Any = (100, 101, 100)

    def forced(self, capacity: int) -> Any:
        return self.guess


def test_a_python_matcher_may_force() -> None:
    matcher = wrap_matcher(Forcing(2))
    assert matcher.forced(8) == [100, 101]  # what it takes itself
    assert matcher.forced(1) == [100]
    assert allowed(mask(matcher)) == [100, 101]
    assert wrap_matcher(CountdownMatcher(2)).forced(8) == []


def test_a_python_matcher_may_fail_to_force() -> None:
    failing = Forcing(2)
    failing.guess = ["x"]
    with pytest.raises(GuideStateError, match="forced"):
        wrap_matcher(failing).forced(8)


def test_an_end_is_not_text() -> None:
    matcher = backend().compile(Guide.regex("a")).matcher()
    assert matcher.forced(8) == [3 + ord("a")]
    assert matcher.accept(3 + ord("a"))
    assert matcher.forced(8) == []
    assert matcher.accept(END)
    assert matcher.forced(8) == []


def test_special_tokens_are_refused_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    """A prompt that is looked up has some; XGrammar has a line on stderr for each."""
    matcher = backend().compile(Guide.regex("[a-z]+")).matcher()
    assert matcher.validate([3 + ord("a"), 1, 3 + ord("a")]) == 1
    assert not matcher.accept(2)
    assert not matcher.accept(299)
    assert matcher.accept(3 + ord("a"))
    assert matcher.validate([END, END]) == 1
    assert capfd.readouterr().err == ""
