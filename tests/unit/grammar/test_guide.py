"""Guides: what is refused when they are made, what is reported, how they are compiled."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from typing import Any, ClassVar, Literal

import numpy as np
import pydantic
import pytest
import xgrammar as xgr

from support.grammar.grammars import END, CountdownMatcher, allowed, new_row, small_vocabulary
from weft import registry
from weft.errors import GuideError, InputError, TokenizerError
from weft.grammar import CompiledGuide, CompileLimits, Guide, GuideCompiler, Vocabulary
from weft.grammar.notes import Notes
from weft.grammar.xgrammar import native
from weft.grammar.xgrammar.backend import XGrammarBackend
from weft.grammar.xgrammar.translate import not_enforced, tokenizer_info


def ids(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()]


def compiled(guide: Guide) -> CompiledGuide:
    return XGrammarBackend(small_vocabulary(), threads=1).compile(guide)


def takes(guide: Guide, text: str) -> bool:
    """Whether the guide takes the whole text, and then the end."""
    tokens = [*ids(text), END]
    return compiled(guide).matcher().validate(tokens) == len(tokens)


class Person(pydantic.BaseModel):
    name: str
    mood: Literal["good", "bad"]


@pytest.mark.parametrize(
    ("guide", "good", "bad"),
    [
        (Guide.json(), '{"a": [1, true]}', "12"),
        (Guide.json_schema({"type": "integer"}), "12", "1.5"),
        (Guide.json_schema('{"type": "integer"}'), "12", "a"),
        (Guide.json_schema(True), '"any"', "any"),
        (Guide.json_schema(Person), '{"name": "x", "mood": "bad"}', '{"name": "x", "mood": "sad"}'),
        (Guide.json_schema(pydantic.TypeAdapter(list[int])), "[1, 2]", '["a"]'),
        (Guide.json_schema({"type": "object"}), '{"any": {"thing": []}}', "[]"),
        (Guide.json_schema({"type": "object", "minProperties": 1}), '{"a": 1}', "{}"),
        (Guide.json_schema({"type": "array", "maxItems": 2}), '[1, "a"]', "[1, 2, 3]"),
        (Guide.json_schema({"type": "object", "properties": {"a": {}}}), '{"a": 1}', '{"b": 1}'),
        (Guide.regex(r"\d{2}-[a-f]+"), "12-abc", "12-xyz"),
        (Guide.regex("^abc$"), "abc", "abcd"),
        (Guide.ebnf('root ::= "<" [a-c]* ">"'), "<abc>", "<d>"),
        (Guide.choice(["yes", 'no "\\ \n', "\u4f60\U0001f600", "\x01"]), 'no "\\ \n', "no"),
        (Guide.choice(["a", "\u4f60\U0001f600"]), "\u4f60\U0001f600", "\u4f60"),
        (Guide.of(xgr.Grammar.from_ebnf('root ::= "x"')), "x", "y"),
    ],
)
def test_what_guides_take(guide: Guide, good: str, bad: str) -> None:
    assert takes(guide, good)
    assert not takes(guide, bad)


def test_blanks_are_bounded() -> None:
    schema = {"type": "array", "items": {"type": "integer"}}
    assert takes(Guide.json_schema(schema), "[1," + " " * 8 + "2]")
    assert not takes(Guide.json_schema(schema), "[1," + " " * 9 + "2]")
    assert takes(Guide.json_schema(schema, max_whitespace=None), "[1," + " " * 99 + "2]")
    assert not takes(Guide.json(max_whitespace=1), "[1,  2]")


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_separators_leave_no_choice_of_blanks(backend: str) -> None:
    """What `json.dumps` writes with them, and nothing else."""
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "integer"}}},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    compiler = GuideCompiler(small_vocabulary(), backend=backend)
    value = {"a": 1, "b": [{"c": 2, "d": 3}, {}]}
    several: list[tuple[str, str]] = [(", ", ": "), (",", ":"), (" ,  ", " : ")]
    for separators in several:
        matcher = compiler.compile_part(Guide.json_schema(schema, separators=separators)).matcher()
        for written in several:
            tokens = [*ids(json.dumps(value, separators=written)), END]
            assert (matcher.validate(tokens) == len(tokens)) == (written == separators)
        spaced = ids(json.dumps(value, separators=separators).replace("{", "{ "))
        assert matcher.validate(spaced) == 1
    assert compiler.compile_part(Guide.json(separators=(",", ":"))).matcher().validate(ids("[1, 2]")) == 3


def test_a_structural_tag() -> None:
    tag = {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": ["<f="],
            "tags": [{"begin": "<f=a>", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "</f>"}],
        },
    }
    guide = Guide.structural_tag(tag)
    assert takes(guide, "free <f=a>12</f> text")
    assert not takes(guide, "free <f=a>x</f> text")


def test_a_compiled_grammar_is_taken_as_it_is() -> None:
    theirs = xgr.GrammarCompiler(tokenizer_info(small_vocabulary())).compile_regex("ab")
    assert takes(Guide.of(theirs), "ab")
    other = Vocabulary.from_tokens([b"", b"a", b"b"], end_ids=[0])
    with pytest.raises(TokenizerError, match="is for 300 tokens, the model has 3"):
        XGrammarBackend(other).compile(Guide.of(theirs))
    guide = Guide.regex("a")
    assert Guide.of(guide) is guide
    with pytest.raises(GuideError, match="int is no guide"):
        Guide.of(3)


def test_a_matcher_of_ones_own() -> None:
    with GuideCompiler(small_vocabulary()) as compiler:
        made = compiler.compile(Guide.matcher(lambda: CountdownMatcher(2)))
        one, two = made.matcher(), made.matcher()
        assert one.accept(100)
        assert two.validate([100, 100, END]) == 3
        with pytest.raises(GuideError, match="can't be a matcher"):
            compiler.compile(Guide.matcher(dict)).matcher()
    with pytest.raises(GuideError, match="function that makes matchers"):
        Guide.matcher(3)  # type: ignore[arg-type]


def test_print_shows_the_grammar() -> None:
    assert str(Guide.choice(["a", "b"])).startswith("root ::=")
    assert "root" in str(Guide.json_schema({"type": "integer"}))
    assert "CountdownMatcher" in str(Guide.matcher(CountdownMatcher))  # type: ignore[arg-type]
    with pytest.raises(GuideError, match="is no grammar"):
        Guide.matcher(CountdownMatcher).grammar()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Guide.json_schema("{"), "not valid JSON"),
        (lambda: Guide.json_schema({"a": {1, 2}}), "not valid JSON"),
        (lambda: Guide.json_schema("3"), "not int"),
        (lambda: Guide.json_schema({"type": 3}), "at #: type is 3"),
        (
            lambda: Guide.json_schema({"properties": {"a": {"type": "strin"}}}),
            "at #/properties/a: type is 'strin'",
        ),
        (lambda: Guide.json_schema({"properties": []}), "properties is"),
        (lambda: Guide.json_schema({"enum": []}), "enum is"),
        (lambda: Guide.json_schema({"required": "a"}), "required is 'a'"),
        (lambda: Guide.json_schema({"type": "string", "maxLength": -1}), "maxLength is -1"),
        (
            lambda: Guide.json_schema({"type": "string", "minLength": 3, "maxLength": 2}),
            "minLength 3 is above maxLength 2",
        ),
        (lambda: Guide.json_schema({"anyOf": []}), "anyOf is"),
        (
            lambda: Guide.json_schema({"items": {"items": {"minimum": "1"}}}),
            "at #/items/items: minimum is '1'",
        ),
        (lambda: Guide.json_schema({"multipleOf": 0}), "multipleOf is 0"),
        (lambda: Guide.json_schema({"$ref": "#/$defs/nowhere"}), "leads nowhere"),
        (lambda: Guide.json_schema({}, max_whitespace=0), "max_whitespace is 0"),
        (lambda: Guide.json_schema({}, max_whitespace="8"), "max_whitespace is '8'"),  # type: ignore[arg-type]
        (lambda: Guide.json_schema("schema.json"), "not as a path"),
        (lambda: Guide.structural_tag({"format": {...}}), "not plain JSON data"),
        (lambda: Guide.of(CountdownMatcher), "Guide.matcher"),
        (lambda: Guide.json_schema({}, separators=(";", ":")), "it must be a comma and a colon"),
        (lambda: Guide.json(separators=", "), "it must be a comma and a colon"),  # type: ignore[arg-type]
        (lambda: Guide.regex(3), "needs a str"),  # type: ignore[arg-type]
        (lambda: Guide.ebnf(b"x"), "needs a str"),  # type: ignore[arg-type]
        (lambda: Guide.choice([]), "at least one text"),
        (lambda: Guide.choice("abc"), "at least one text"),
        (lambda: Guide.choice(["a", ""]), "not empty"),
        (lambda: Guide.structural_tag({}), "must have a format"),
    ],
)
def test_what_is_wrong_at_first_sight(make: Any, text: str) -> None:
    with pytest.raises(GuideError, match=text.replace("(", r"\(").replace("$", r"\$")):
        make()


@pytest.mark.parametrize(
    ("guide", "text"),
    [
        (Guide.json_schema({"$ref": "#"}), "the guide can't be met"),
        (Guide.regex(r"[^\s\S]"), "no token of this vocabulary may begin it"),
        (Guide.regex("a("), "parenthesis is not closed"),
        (Guide.regex("a$b"), r"would ignore a \^ or \$"),
        (Guide.regex("a(?=b)"), "Lookahead is not supported"),
        (Guide.choice(["a\0b"]), "can't spell a NUL character"),
        (Guide.lark("start: A"), "XGrammar has no Lark"),
        (Guide.ebnf('root ::= "a" missing'), '^EBNF: EBNF parser error.*Rule "missing" is not defined$'),
        (Guide.json_schema(False), "nothing can satisfy it"),
    ],
)
def test_what_compiling_finds(guide: Guide, text: str) -> None:
    with pytest.raises(GuideError, match=text):
        compiled(guide)


IGNORED: list[tuple[dict[str, Any], str]] = [
    ({"type": "string", "not": {"pattern": "a"}}, "#: not is not enforced"),
    ({"type": "array", "items": {}, "uniqueItems": True}, "uniqueItems is not enforced"),
    ({"type": "array", "contains": {"type": "null"}}, "contains is not enforced"),
    ({"type": "string", "format": "regex"}, "format 'regex' is not known"),
    ({"$ref": "https://example.org/schema"}, "is not followed"),
    ({"type": "string", "pattern": "^(?!a)b$"}, "look-around of pattern"),
    ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "maxLength beside pattern is not"),
    ({"type": "number", "multipleOf": 0.5}, "multipleOf is enforced on integers only"),
    ({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "allOf of more than one schema"),
    (
        {"properties": {"a": {"items": {"not": {"pattern": "a"}}}}},
        "#/properties/a/items: not is not enforced",
    ),
    ({"type": "integer", "multipleOf": 3, "minimum": 4}, "multipleOf is not enforced beside bounds"),
    ({"type": "string", "format": "date", "maxLength": 2}, "maxLength beside format is not enforced"),
    ({"type": "object", "minProperties": 2}, "minProperties is not enforced where names may come twice"),
    ({"type": "string", "pattern": "^a$b"}, "is enforced without the anchors in its midst"),
    ({"type": "string", "pattern": '^["a]$'}, "is not enforced on characters that JSON escapes"),
]


@pytest.mark.parametrize(("schema", "text"), IGNORED)
def test_ignored_keywords_are_reported(schema: dict[str, Any], text: str) -> None:
    assert text in str(Notes.of(not_enforced(Guide.json_schema(schema))))
    with pytest.raises(GuideError) as error:
        compiled(Guide.json_schema(schema))
    assert text in str(error.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]},
        {"allOf": [{"type": "integer"}]},
        {"type": "string", "format": "date-time"},
        {"type": ["integer", "null"], "multipleOf": 5},
        {"type": "integer", "format": "int64"},
        {"type": "object", "properties": {"not": {"type": "string"}}, "required": ["not"]},
        {"type": "array", "uniqueItems": False},
        {"not": {"type": "string"}},
        {"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"type": "string"}},
        {"minLength": 3},
        {"allOf": [{"type": "integer"}, {"minimum": 3}]},
        {"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]},
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
        {"$ref": "#/$defs/x", "minimum": 5, "$defs": {"x": {"type": "integer"}}},
        {"type": "object", "properties": {"a": {}}, "required": ["b"]},
        {"$defs": {"a/b": {"type": "null"}}, "$ref": "#/$defs/a~1b", "title": "t", "description": "d"},
    ],
)
def test_what_is_enforced_is_not_reported(schema: dict[str, Any]) -> None:
    assert not Notes.of(not_enforced(Guide.json_schema(schema)))


def test_repetitions_that_break_the_cache_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """XGrammar's compile cache fails on some long repetitions; a compiler without a cache takes them."""
    guide = Guide.json_schema({"type": "string", "pattern": r"^\S{1,200}$"})
    assert takes(guide, '"' + "a" * 200 + '"')
    backend = XGrammarBackend(small_vocabulary(), threads=1)
    calls = []

    class Failing:
        def compile_grammar(self, grammar: xgr.Grammar) -> None:
            calls.append(grammar)
            raise RuntimeError("Check failed: per_rule_fsm_hashes[0] ...")

    make = backend._compiler
    monkeypatch.setattr(
        backend, "_compiler", lambda cache_enabled: Failing() if cache_enabled else make(cache_enabled=False)
    )
    assert backend.compile(Guide.regex("abc")).matcher().validate(ids("abc")) == 3
    assert len(calls) == 1


def test_masks_do_not_depend_on_what_was_compiled_before() -> None:
    """XGrammar's own cache gives the second of these masks that let "[[" through, which its matcher then refuses."""
    before = {"anyOf": [{"type": "array"}, {"type": "array", "maxItems": 0}]}
    guide = Guide.json_schema({"minItems": 0, "maxItems": 0})
    backend = XGrammarBackend(small_vocabulary())
    backend.compile(Guide.json_schema(before))
    rows = [new_row(), new_row()]
    for row, made in zip(rows, (backend, XGrammarBackend(small_vocabulary())), strict=True):
        made.compile(guide).matcher().fill(row)
    assert np.array_equal(*rows)


def test_the_fallback_through_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interface that is not the expected one is warned about, and matchers work all the same."""
    native.native_is_usable.cache_clear()
    monkeypatch.setattr(native._core, "xgrammar_bind", lambda *_: "a function is missing")
    try:
        with pytest.warns(
            RuntimeWarning, match=r"a function is missing.*xgrammar 0\.2\.x on apache-tvm-ffi 0\.1\.x"
        ):
            backend = XGrammarBackend(small_vocabulary())
        assert backend.compile(Guide.regex("ab")).matcher().validate([*ids("ab"), END]) == 3
        with pytest.raises(RuntimeError, match="can't be called natively"):
            XGrammarBackend(small_vocabulary(), native=True)
    finally:
        native.native_is_usable.cache_clear()


def test_the_self_test_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert native._self_test() == ""
    monkeypatch.setattr(native.XGrammarMatcher, "accept", lambda self, token: token == 3)
    assert native._self_test() == "its native accept does not do what Python's does"


class Slow:
    """A backend that compiles when it is let."""

    gate = threading.Event()
    compiled: ClassVar[list[str]] = []

    def __init__(self, vocabulary: Vocabulary, **options: Any) -> None:
        self.vocabulary = vocabulary

    def compile(self, guide: Guide) -> Any:
        if guide.source == "slow":
            assert self.gate.wait(30)
        if guide.source == "broken":
            raise GuideError("planted")
        self.compiled.append(guide.source)
        return Made(guide, int(guide.source) if guide.source.isdigit() else 1)


class Made:
    vocab_size = 300
    notes = ()

    def __init__(self, guide: Guide, memory_bytes: int) -> None:
        self.guide = guide
        self.memory_bytes = memory_bytes

    def matcher(self) -> Any:
        raise NotImplementedError


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    Slow.gate, Slow.compiled = threading.Event(), []
    monkeypatch.setitem(registry.GRAMMARS, "slow", f"{__name__}:Slow")
    monkeypatch.setattr(registry, "load", lambda kind, name: Slow)


def guide_of(source: str) -> Guide:
    return Guide("ebnf", source)


def test_equal_guides_are_compiled_once(slow: None) -> None:
    with GuideCompiler(small_vocabulary(), backend="slow") as compiler:
        futures = [compiler.submit(guide_of("slow")) for _ in range(3)]
        assert not any(future.done() for future in futures)
        other = compiler.submit(guide_of("other")).result(30)
        Slow.gate.set()
        assert len({id(future.result(30)) for future in futures}) == 1
        assert compiler.submit(guide_of("other")).result(0) is other
        assert Slow.compiled == ["other", "slow"]
        with pytest.raises(GuideError, match="planted"):
            compiler.compile(guide_of("broken"))
        with pytest.raises(GuideError, match="planted"):
            compiler.compile(guide_of("broken"))


def test_nobody_cancels_what_others_wait_for(slow: None) -> None:
    with GuideCompiler(small_vocabulary(), backend="slow") as compiler:
        guide = guide_of("slow")
        mine, waiting = compiler.submit(guide), compiler.submit(guide_of("waits"))
        assert not mine.cancel()
        assert not waiting.cancel()
        Slow.gate.set()
        assert compiler.submit(guide).result(30) is mine.result(30)


def test_the_cache_is_bounded(slow: None) -> None:
    text = sys.getsizeof("40")
    with GuideCompiler(small_vocabulary(), backend="slow", cache_limit_bytes=100 + 2 * text) as compiler:
        for source in ("40", "41", "40", "42", "1000"):
            compiler.compile(guide_of(source))
        assert compiler.cache.num_bytes == 82 + 2 * text
        assert len(compiler.cache) == 2
        compiler.compile(guide_of("40"))
        assert Slow.compiled == ["40", "41", "42", "1000"]


def test_a_compile_past_its_time_fails_and_the_next_goes_on(slow: None) -> None:
    limits = CompileLimits(time_s=0.2, max_abandoned=1)
    with GuideCompiler(small_vocabulary(), backend="slow", workers=1, limits=limits) as compiler:
        stuck = compiler.submit(guide_of("slow"))
        waiting = compiler.submit(guide_of("waiting"))
        with pytest.raises(GuideError, match=r"did not compile in 0\.2 s"):
            stuck.result(30)
        waiting.result(30)
        assert compiler.num_abandoned == 1
        with pytest.raises(GuideError, match="past their time limit"):
            compiler.compile(guide_of("more"))
        Slow.gate.set()
        deadline = threading.Event()
        while compiler.num_abandoned and not deadline.wait(0.01):
            pass
        compiler.compile(guide_of("more"))


def test_limits_on_size_and_depth() -> None:
    limits = CompileLimits(max_source_bytes=2000, max_depth=8)
    with GuideCompiler(small_vocabulary(), limits=limits) as compiler:
        with pytest.raises(GuideError, match=r"has \d+ bytes; at most 2000"):
            compiler.compile(Guide.choice(["x" * 3000]))
        nested: dict[str, Any] = {"type": "integer"}
        for _ in range(10):
            nested = {"type": "array", "items": nested}
        with pytest.raises(GuideError, match="nests 11 deep"):
            compiler.compile(Guide.json_schema(nested))
        brackets_in_text = Guide.json_schema({"const": "[" * 20 + '\\"' + "{" * 20})
        compiler.compile(brackets_in_text)


def test_a_closed_compiler_takes_nothing(slow: None) -> None:
    compiler = GuideCompiler(small_vocabulary(), backend="slow", workers=1)
    stuck, waiting = compiler.submit(guide_of("slow")), compiler.submit(guide_of("waiting"))
    while len(compiler._jobs) > 1:  # the thread has not begun the first
        time.sleep(0.001)
    threading.Timer(0.1, Slow.gate.set).start()
    compiler.close()
    with pytest.raises(GuideError, match="was closed"):
        waiting.result(30)
    stuck.result(30)
    with pytest.raises(GuideError, match="is closed"):
        compiler.submit(guide_of("more"))


def test_the_end_of_the_program_does_not_wait_for_a_compile() -> None:
    """A schema that compiles for many seconds: the program ends, and quietly."""
    program = """
        from weft.grammar import CompileLimits, Guide, GuideCompiler, Vocabulary
        vocabulary = Vocabulary.from_tokens([b""] + [bytes([b]) for b in range(1, 256)], end_ids=[0])
        compiler = GuideCompiler(vocabulary, limits=CompileLimits(time_s=0.3, max_source_bytes=1 << 24))
        guide = Guide.json_schema({"enum": [f"some text {i * 7919 % 100003}" for i in range(60000)]})
        try:
            compiler.compile(guide)
        except Exception as error:
            print(type(error).__name__, compiler.num_abandoned)
        compiler.compile(Guide.regex("abc"))
        compiler.close()
        print("closed")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["GuideError", "1", "closed"]


def test_the_end_of_the_program_survives_compiles_that_end_with_it() -> None:
    """Threads that come back from XGrammar when the interpreter has gone: CPython ends them, in C++ frames."""
    program = """
        import threading
        import time
        import xgrammar
        import weft.grammar
        info = xgrammar.TokenizerInfo([b""] + [bytes([b]) for b in range(1, 256)], stop_token_ids=[0])
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

        def work():
            while True:
                compiler.compile_json_schema('{"type": "object"}')

        for _ in range(6):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_names_of_the_registry() -> None:
    assert registry.names("grammars") == ["auto", "xgrammar", "llguidance"]
    with pytest.raises(InputError, match=r"'nothing' is not one of the drafters: .*eagle3"):
        registry.load("drafters", "nothing")
    assert registry.load("grammars", "xgrammar") is XGrammarBackend


def test_equal_guides() -> None:
    assert Guide.regex("a") == Guide.regex("a")
    assert hash(Guide.regex("a")) == hash(Guide.regex("a"))
    assert Guide.regex("a") != Guide.ebnf("a")
    assert Guide.json() != Guide.json(max_whitespace=2)
    assert Guide.json() != Guide.json(separators=(",", ":"))
    grammars = [Guide.of(xgr.Grammar.from_regex(text)) for text in ("a", "b")]
    assert len({*grammars, *grammars}) == 2


def test_no_warning_for_plain_guides() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = new_row()
        compiled(Guide.json()).matcher().fill(row)
    assert allowed(row)
    assert row.dtype == np.int32


@pytest.mark.parametrize("text", ["\x01b", "\x7fa", "\x1b[0m", "a\tb\n", 'x\\y"z', "\x02\x03f"])
def test_a_choice_is_spelt_as_it_is(text: str) -> None:
    """A control character before a hexadecimal digit, too."""
    matcher = xgr.GrammarMatcher(compile_for_bytes(Guide.choice([text])))
    for byte in text.encode():
        assert matcher.accept_token(byte)
    assert matcher.accept_token(256)


@pytest.mark.parametrize("choices", ["ab", 5, [5], []])
def test_choices_that_can_not_be_are_refused(choices: Any) -> None:
    with pytest.raises(GuideError, match="choice"):
        Guide.choice(choices)


def compile_for_bytes(guide: Guide) -> xgr.CompiledGrammar:
    tokens = [bytes([i]) for i in range(256)] + [b""]
    info = xgr.TokenizerInfo(tokens, vocab_type=xgr.VocabType.RAW, vocab_size=257, stop_token_ids=[256])
    return xgr.GrammarCompiler(info).compile_grammar(guide.grammar())
