"""Free text before a guide, against a search in the whole text; what triggers are refused; what is kept of it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from support.grammar.grammars import END, PIECES, allowed, backend, ids, new_row, small_vocabulary
from weft import _core
from weft.errors import GuideError
from weft.grammar import CompiledGuide, CompileLimits, Guide, GuideCompiler, Matcher, Vocabulary
from weft.grammar.kinds.after import After, compile_after
from weft.grammar.xgrammar.backend import XGrammarBackend
from weft.guided.recorded_guide import RecordedGuide

VOCABULARY = small_vocabulary()
TEXTS = _core.TokenTexts(VOCABULARY.tokens)
PIECE = {piece: 259 + i for i, piece in enumerate(PIECES)}


def compiled(guide: Guide, vocabulary: Vocabulary = VOCABULARY) -> CompiledGuide:
    class Parts:
        time_left_s = math.inf

        def __init__(self) -> None:
            self.vocabulary = vocabulary

        def compile_part(self, part: Guide) -> CompiledGuide:
            if part.kind == "after":
                return compile_after(part, self)
            made = backend() if vocabulary is VOCABULARY else XGrammarBackend(vocabulary, threads=1)
            return made.compile(part)

    return compile_after(guide, Parts())


def mask(matcher: Matcher) -> list[int]:
    row = new_row()
    row[:] = -1
    assert matcher.fill(row)
    return allowed(row)


class Search:
    """The same by looking through the whole text for each token."""

    def __init__(self, trigger: bytes, inner: CompiledGuide) -> None:
        self.trigger, self.inner = trigger, inner
        self.taken: list[int] = []

    def rest(self, tokens: list[int]) -> bytes | None:
        """What stands behind the trigger; None before it."""
        _, found, rest = VOCABULARY.decode(tokens).partition(self.trigger)
        return rest if found else None

    def allows(self, token: int) -> bool:
        begun = next((n for n in range(len(self.taken) + 1) if self.rest(self.taken[:n]) is not None), None)
        if begun is not None:
            tokens = TEXTS.encode(self.rest(self.taken[:begun]) or b"") + self.taken[begun:] + [token]
            return self.inner.matcher().validate(tokens) == len(tokens)
        if not VOCABULARY.tokens[token]:
            return False
        tokens = TEXTS.encode(self.rest([*self.taken, token]) or b"")
        return self.inner.matcher().validate(tokens) == len(tokens)


@pytest.mark.parametrize(
    ("trigger", "guide"),
    [
        ("aab", Guide.regex("c(a|ab)*x")),
        ("abaab", Guide.choice(["c", "ab", ": "])),
        ("aaaa", Guide.choice(["a", "aa"])),
        ('": ', Guide.json()),
        ("]", Guide.regex(r"\]*,")),
        ("é", Guide.regex("é")),
    ],
)
def test_the_mask_is_what_a_search_in_the_whole_text_allows(trigger: str, guide: Guide) -> None:
    inner = backend().compile(guide)
    rng = random.Random(trigger)
    letters = sorted({token for token in range(300) if set(VOCABULARY.tokens[token]) & set(trigger.encode())})
    began = 0
    for _ in range(20):
        search, matcher = Search(trigger.encode(), inner), compiled(Guide.after(trigger, guide)).matcher()
        for _ in range(10):
            choices = mask(matcher)
            tried = {*letters, *rng.sample(range(300), 10)}
            assert sorted(tried & set(choices)) == sorted(t for t in tried if search.allows(t))
            narrow = sorted(set(letters) & set(choices)) or choices
            token = rng.choice(narrow)
            assert matcher.accept(token)
            search.taken.append(token)
            if matcher.is_terminated():
                break
        began += search.rest(search.taken) is not None
    assert began >= 5


def test_a_token_that_holds_the_end_of_the_trigger_and_the_beginning_of_the_guide() -> None:
    matcher = compiled(Guide.after('"', Guide.choice([': "x', ", y"]))).matcher()
    assert PIECE[b'": "'] in mask(matcher)
    assert PIECE[b'"}'] not in mask(matcher)
    assert not matcher.accept(PIECE[b'"}'])
    before = mask(matcher)
    assert matcher.accept(PIECE[b'": "'])
    assert mask(matcher) == ids("x")
    matcher.rollback(1)  # the token goes as a whole
    assert mask(matcher) == before
    assert matcher.accept(PIECE[b'", "']) is False  # the guide has no `, "`
    assert matcher.validate([*ids("ab"), PIECE[b'":'], *ids(' "x'), END]) == 7


def test_a_token_ends_the_free_text() -> None:
    matcher = compiled(Guide.after(1, Guide.regex("[0-9]+"))).matcher()
    assert set(mask(matcher)) == {1, *range(3, 274)}
    assert matcher.validate([*ids("a1"), 1, *ids("12"), END]) == 6
    assert matcher.validate([2]) == matcher.validate([END]) == 0
    ordinary = compiled(Guide.after(3 + ord("a"), Guide.regex("b"))).matcher()
    assert ordinary.validate([*ids("xab"), END]) == 4


def test_the_name_of_a_special_token_is_the_token() -> None:
    vocabulary = Vocabulary.from_tokens(
        list(VOCABULARY.tokens),
        end_ids=[END],
        special_ids=[1, 2],
        special_names={"<end>": END, "</think>": 1, "a": 3 + ord("a")},
    )
    assert vocabulary.special_names == {"<end>": END, "</think>": 1}
    matcher = compiled(Guide.after("</think>", Guide.regex("b")), vocabulary).matcher()
    assert matcher.validate([*ids("</think>"), 1, *ids("b"), END]) == 11
    with pytest.raises(GuideError, match="'<end>' is an end token"):
        compiled(Guide.after("<end>", Guide.regex("b")), vocabulary)
    with pytest.raises(GuideError, match=r"holds the special token '</think>'.*within Guide\.after"):
        compiled(Guide.after("</think>\n", Guide.regex("b")), vocabulary)


@pytest.mark.parametrize(("trigger", "tokens"), [(1, [1]), ("aab", ids("aab"))])
def test_behind_so_many_tokens_only_the_trigger_may_come(trigger: int | str, tokens: list[int]) -> None:
    guide = Guide.after(trigger, Guide.regex("[0-9]"), max_free_tokens=3)
    matcher = compiled(guide).matcher()
    assert matcher.forced(8) == []
    for token in ids("xya"):
        assert matcher.accept(token)
    rest = tokens if trigger == 1 else tokens[1:]  # one letter of the text is there
    spelled = 1 if trigger == 1 else 2
    if trigger == 1:
        assert mask(matcher) == [1]
    else:
        assert mask(matcher) == sorted([*ids("a"), PIECE[b"ab"]])
    assert matcher.forced(8) in (rest, [PIECE[b"ab"]])
    assert matcher.validate([*rest, *ids("7"), END]) == spelled + 2
    at_once = compiled(Guide.after(trigger, Guide.regex("[0-9]"), max_free_tokens=0)).matcher()
    assert at_once.validate([*tokens, *ids("7"), END]) == len(tokens) + 2
    assert at_once.validate(ids("x")) == 0


def test_one_trigger_behind_another() -> None:
    guide = Guide.after("<a>", Guide.after("b>", Guide.after(1, Guide.regex("[0-9]"))))
    matcher = compiled(guide).matcher()
    text = [*ids("b> x <a> y <b> z"), 1, *ids("4"), END]
    assert matcher.validate(text) == len(text)
    for token in text:
        assert matcher.accept(token)
    assert matcher.is_terminated()
    matcher.rollback(3)
    assert matcher.validate([*ids("z"), 1, *ids("5"), END]) == 4
    matcher.rollback(len(text) - 3 - 3)
    assert matcher.validate(text[3:]) == len(text) - 3


def test_forks_resets_and_errors() -> None:
    matcher = compiled(Guide.after("ab", Guide.regex("[0-9]{2}"))).matcher()
    start = mask(matcher)
    assert matcher.accept(PIECE[b"ab"])
    fork = matcher.fork()
    assert fork.accept(ids("1")[0])
    assert mask(matcher) == [*ids("0123456789"), PIECE[b"12"]]
    assert mask(fork) == ids("0123456789")
    matcher.rollback(1)
    assert mask(matcher) == start
    assert fork.validate([*ids("2"), END]) == 2
    with pytest.raises(Exception, match="rollback of 3 tokens, of 2"):
        fork.rollback(3)
    with pytest.raises(Exception, match="negative"):
        fork.rollback(-1)
    with pytest.raises(Exception, match="shorter than the vocabulary"):
        matcher.fill(np.zeros(2, dtype=np.int32))
    assert fork.validate([*ids("2"), END]) == 2
    fork.reset()
    assert mask(fork) == start
    for token in (-1, 300, 2**30):
        assert not fork.accept(token)


@pytest.mark.parametrize(
    ("trigger", "limit", "text"),
    [
        ("", None, "has 0 bytes"),
        ("x" * 257, None, "has 257 bytes"),
        ("\ud800", None, "UTF-8"),
        (-1, None, "token -1"),
        (True, None, "not bool"),
        (2.5, None, "not float"),
        ("a", -1, "max_free_tokens is -1"),
        ("a", True, "max_free_tokens is True"),
        (300, None, "ids are 0 to 299"),
        (END, None, "is an end token"),
        (299, None, "does not use"),
    ],
)
def test_triggers_that_can_not_be(trigger: object, limit: int | None, text: str) -> None:
    with pytest.raises(GuideError, match=text):
        compiled(Guide.after(trigger, Guide.regex("a"), max_free_tokens=limit))  # type: ignore[arg-type]


def test_what_a_vocabulary_can_not_spell() -> None:
    few = Vocabulary.from_tokens([b"", b"a", b"bc", b"ab"], end_ids=[0])
    other = Vocabulary.from_tokens([b"", b"a", b"bc", b"abc"], end_ids=[0])
    with pytest.raises(GuideError, match="no token of this vocabulary can end the trigger 'x'"):
        compiled(Guide.after("x", Guide.regex("a")), few)
    with pytest.raises(GuideError, match="no token of this vocabulary can end the trigger 'b'"):
        compiled(Guide.after("b", Guide.regex("bc")), other)
    with pytest.raises(GuideError, match="can't spell the trigger 'abc' from everywhere"):
        compiled(Guide.after("abc", Guide.regex("a"), max_free_tokens=2), other)


def test_its_content_is_its_key_and_is_kept() -> None:
    one, same = (Guide.after("x", Guide.json(), max_free_tokens=3) for _ in range(2))
    assert one == same
    assert After.of(one) == After("x", Guide.json(), 3)
    assert one != Guide.after("x", Guide.json())
    assert RecordedGuide.of(one).guide() == one
    ordered = Guide.json_schema({"type": "object"}, any_order=True, strict=True)
    assert After.of(Guide.after("x", Guide.after("y", ordered))).guide == Guide.after("y", ordered)
    assert After.of(Guide.after("y", ordered)).guide == ordered
    own = Guide.after("x", Guide.matcher(dict))
    assert own.key is None
    assert After.of(own).guide.payload is dict
    assert RecordedGuide.of(own).guide() is None
    assert "[0-9]" in str(Guide.after("x", Guide.regex("[0-9]")))
    with pytest.raises(GuideError, match="not a grammar"):
        one.grammar()
    with pytest.raises(GuideError, match="is not a guide"):
        Guide.after("x", "[0-9]")  # type: ignore[arg-type]


def test_limits_hold_for_what_stands_within() -> None:
    deep = Guide.regex("a")
    for _ in range(16):
        deep = Guide.after("x", deep)
    with pytest.raises(GuideError, match="at most 16 triggers"):
        Guide.after("x", deep)
    with GuideCompiler(VOCABULARY, limits=CompileLimits(max_depth=3)) as compiler:
        assert compiler.compile(deep).matcher().validate([*ids("x" * 16 + "a"), END]) == 18
        with pytest.raises(GuideError, match="nests 4 deep"):
            compiler.compile(Guide.after("x", Guide.json_schema({"items": {"items": {"items": {}}}})))
        with pytest.raises(GuideError, match="no token of this vocabulary may begin it"):
            compiler.compile(Guide.after("x", Guide.regex(r"[^\s\S]")))
        with pytest.raises(GuideError, match="not the source of a guide"):
            compiler.compile(Guide("after", "{}"))


def test_an_unread_guide_behind_a_trigger_is_read_at_once() -> None:
    with pytest.raises(GuideError, match="type is 'text'"):
        Guide.after("</t>", Guide.unread("json_schema", '{"type": "text"}'))
    good = Guide.after("</t>", Guide.unread("json_schema", '{"type": "integer"}'))
    assert good == Guide.after("</t>", Guide.json_schema('{"type": "integer"}'))
