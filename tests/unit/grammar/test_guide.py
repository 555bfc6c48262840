"""Guides: what is refused when they are made, what they take, what is reported."""

from __future__ import annotations

import json
import warnings
from enum import Enum
from typing import Any, Literal

import numpy as np
import pydantic
import pytest
import xgrammar as xgr

from support.grammar.grammars import END, CountdownMatcher, allowed, ids, new_row, small_vocabulary
from weft import registry
from weft.errors import GuideError, InputError, TokenizerError
from weft.grammar import CompiledGuide, Guide, GuideCompiler, Vocabulary
from weft.grammar.notes import Notes
from weft.grammar.xgrammar.backend import XGrammarBackend
from weft.grammar.xgrammar.translate import not_enforced, tokenizer_info


def compiled(guide: Guide) -> CompiledGuide:
    return XGrammarBackend(small_vocabulary(), threads=1).compile(guide)


def takes(guide: Guide, text: str) -> bool:
    """Whether the guide takes the whole text, and then the end."""
    tokens = [*ids(text), END]
    return compiled(guide).matcher().validate(tokens) == len(tokens)


TOOL = {"type": "function", "function": {"name": "f"}}


class Mood(Enum):
    GOOD = "good"


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
    assert takes(Guide.json_schema(schema, max_whitespace=8), "[1," + " " * 8 + "2]")
    assert not takes(Guide.json_schema(schema, max_whitespace=8), "[1," + " " * 9 + "2]")
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
    with pytest.raises(GuideError, match="int is not a guide"):
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
    with pytest.raises(GuideError, match="is not a grammar"):
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
        (lambda: Guide.json_schema({"requird": ["a"]}), "at #: requird is not a keyword, but required is"),
        (lambda: Guide.json_schema({"items": {"maxlength": 3}}), "at #/items: maxlength is not a keyword"),
        (
            lambda: Guide.json_schema({"name": "string", "age": {"type": "integer"}}),
            '"properties" is missing',
        ),
        (
            lambda: Guide.unread("json_schema", '{"itmes": {}}').check(),
            "itmes is not a keyword, but items is",
        ),
        (lambda: Guide.choice(Mood), "a Python type is a guide itself"),  # type: ignore[arg-type]
        (lambda: Guide.json_schema({}, max_whitespace=0), "max_whitespace is 0"),
        (lambda: Guide.json_schema({}, max_whitespace="8"), "max_whitespace is '8'"),  # type: ignore[arg-type]
        (
            lambda: Guide.json_schema({}, max_whitespace=True),
            "it must be 'tidy', a number from 1 on, or None",
        ),
        (lambda: Guide.tools([TOOL], style="llama", max_whitespace=0), "max_whitespace is 0"),
        (lambda: Guide.tools([TOOL], max_whitespace="neat"), "max_whitespace is 'neat'"),  # type: ignore[arg-type]
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
    ({"type": "integer", "not": {"multipleOf": 3}}, "#: not is not enforced"),
    ({"type": "array", "items": {}, "uniqueItems": True}, "uniqueItems is not enforced"),
    ({"type": "array", "contains": {"type": "null"}, "minContains": 20}, "contains is not enforced"),
    ({"type": "string", "format": "idn-email"}, "format 'idn-email' is not known"),
    ({"$ref": "https://example.org/schema"}, "is not followed"),
    ({"type": "string", "pattern": "^(?!a)b$"}, "look-around of pattern"),
    ({"type": "string", "pattern": "^a+$", "maxLength": 3}, "maxLength beside pattern is not"),
    ({"type": "number", "multipleOf": 0.5}, "multipleOf is enforced on integers only"),
    ({"type": "string", "allOf": [{"pattern": "a"}, {"pattern": "b"}]}, "allOf of more than one schema"),
    (
        {"properties": {"a": {"items": {"not": {"multipleOf": 3}}}}},
        "#/properties/a/items: not is not enforced",
    ),
    ({"type": "integer", "multipleOf": 3, "minimum": 4}, "multipleOf is not enforced beside bounds"),
    ({"type": "string", "format": "date", "maxLength": 2}, "maxLength beside format is not enforced"),
    ({"type": "object", "minProperties": 2}, "minProperties is not enforced where names may come twice"),
    ({"type": "string", "pattern": "^a$b"}, "is enforced without the anchors in its midst"),
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


def test_names_of_the_registry() -> None:
    assert registry.names("grammars")[:3] == ["auto", "xgrammar", "llguidance"]
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


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
def test_a_misspelled_keyword_is_a_note_without_strict(backend: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "enums": ["x"]}},
        "propertyOrder": ["a"],
    }
    with GuideCompiler(small_vocabulary(), backend=backend) as compiler:
        compiled = compiler.compile(Guide.json_schema(schema, strict=False))
        assert compiled.notes == ("#/properties/a: enums is not a keyword, but enum is",)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"requird": {"type": "string"}}, "x-required": ["a"]},
        {"type": "string", "formatter": "date", "enumNames": ["x"], "note": "any", "$comment": "string"},
        {"title": "string", "description": "object"},
        {"default": {"itmes": {}}},
    ],
)
def test_an_unknown_keyword_is_an_annotation(schema: dict[str, Any]) -> None:
    assert Guide.json_schema(schema).strict


def test_tools_without_a_style_have_a_text() -> None:
    assert "find" in str(Guide.tools([{"type": "function", "function": {"name": "find"}}]))
