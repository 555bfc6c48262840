"""Which guides LLGuidance takes, what is refused, and what is said of the rest."""

from __future__ import annotations

import pytest

from support.grammar.grammars import END, takes
from weft import _core
from weft.errors import GuideError
from weft.grammar import Guide
from weft.grammar.llguidance.backend import LLGuidanceBackend
from weft.grammar.llguidance.lark import to_lark


@pytest.mark.parametrize(
    ("guide", "good", "bad"),
    [
        (Guide.lark('start: "a" x+\nx: "b" | "(" x ")"'), "ab(b)((b))", "a(b"),
        (
            Guide.lark('start: head body\nhead[suffix="!"]: /.*/\nbody: %json {"type": "integer"}'),
            "hey!12",
            "hey12",
        ),
        (Guide.regex("(?i)yes"), "YeS", "no"),
        (Guide.regex(r"\p{L}+"), "é", "1"),
        (Guide.regex(r"\d.\w"), "1\nb", "٣\nb"),
        (Guide.choice(["a\0b", "[x]{2}"]), "a\0b", "xx"),
        (Guide.choice(["a/b", "é\n"]), "é\n", "a"),
        (Guide.json_schema({"type": "object", "properties": {"a": {}}}), '{"a": 1}', '{"b": 1}'),
        (Guide.json_schema({"type": "object"}), '{"any": []}', "[]"),
        (
            Guide.json_schema(
                {"allOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"b": {}}}]}
            ),
            '{"a": null, "b": 1}',
            '{"a": 1}',
        ),
        (Guide.json_schema({"type": "array", "prefixItems": [{"type": "integer"}]}), "[1, 2]", '["a"]'),
        (Guide.json_schema({"oneOf": [{"const": 1}, {"enum": [2, 3]}]}), "2", "4"),
        (
            Guide.json_schema({"type": "array", "items": {"type": "integer"}}, max_whitespace=8),
            "[1," + " " * 8 + "2]",
            "[1," + " " * 9 + "2]",
        ),
        (Guide.json_schema({"type": "object", "properties": {"a": {}}, "required": ["b"]}), '{"b": 1}', "{}"),
        (
            Guide.json_schema({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}),
            "{}",
            '{"b": 1}',
        ),
        (Guide.json_schema(True), '"x"', "x"),
    ],
)
def test_what_guides_take(backend: LLGuidanceBackend, guide: Guide, good: str, bad: str) -> None:
    assert takes(backend, guide, good)
    assert not takes(backend, guide, bad)


@pytest.mark.parametrize(
    ("guide", "text"),
    [
        (
            Guide.json_schema({"items": {"not": {"multipleOf": 3}}}),
            "^JSON schema: LLGuidance does not enforce all of it: #/items: not is not enforced",
        ),
        (Guide.json_schema({"type": "integer"}, any_order=True), "any_order needs XGrammar"),
        (Guide.json_schema({"type": "string", "format": "idn-email"}), "#: format 'idn-email' is not known"),
        (Guide.json_schema({"$ref": "#"}), "no token of this vocabulary may begin it"),
        (Guide.json_schema(False), "nothing can satisfy it"),
        (Guide.regex("a("), "regex: .*unclosed group"),
        (Guide.regex("a(?=b)"), "look-ahead"),
        (Guide.regex("a\0b"), "NUL"),
        (Guide.regex(r"[^\s\S]"), "no token of this vocabulary may begin it"),
        (Guide.lark("start: a"), "Lark: .*unknown"),
        (Guide.lark('start: a\na[max_tokens=3]: "b"'), "max_tokens is not supported"),
        (Guide.lark('start: a "b"\na[stop="q"]: /.*/'), "use suffix"),
        (Guide.lark('start: a\na[capture, temperature=0.5]: "b"'), "temperature is not supported"),
        (Guide.lark('start: a\na[capture,max_tokens # a comment\n =3]: "b"'), "max_tokens is not supported"),
        (
            Guide.lark('start: %json {"a": "\x7f"} a\na[stop="x"]: "b"'),
            "stop is not supported.*or use suffix",
        ),
        (Guide.regex("a)|(?:b"), "unopened group"),
        (Guide.regex("a)(?i:b"), "unopened group"),
        (Guide.regex("(a"), "unclosed group"),
        (Guide.ebnf('root ::= "a" missing'), "is not defined"),
        (
            Guide.structural_tag({"type": "structural_tag", "format": {"type": "any_text"}}),
            "no structural tag",
        ),
    ],
)
def test_what_is_refused(backend: LLGuidanceBackend, guide: Guide, text: str) -> None:
    with pytest.raises(GuideError, match=r"(?s)" + text) as raised:
        backend.compile(guide)
    assert "<" not in str(raised.value), "no trace of LLGuidance's insides"


def test_what_is_ignored_is_reported(backend: LLGuidanceBackend) -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"type": "integer", "not": {"multipleOf": 2}}}
    compiled = backend.compile(Guide.json_schema(schema, strict=False))
    assert sorted(compiled.notes) == ["#/items: not is not enforced", "#: uniqueItems is not enforced"]
    text = [3 + byte for byte in b"[4, 4]"]
    assert compiled.matcher().validate([*text, END]) == len(text) + 1
    assert compiled.matcher().validate([3 + byte for byte in b'["']) == 1


def test_limits_end_a_compile(backend: LLGuidanceBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Guide.json_schema({"type": "object", "properties": {f"p{i}": {} for i in range(50)}})
    backend.compile(guide)
    for limits, text in [({"max_grammar_size": 50}, "grammar size"), ({"initial_lexer_fuel": 50}, "too big")]:
        monkeypatch.setattr(backend, "_limits", _core.LlguidanceLimits(**limits))
        with pytest.raises(GuideError, match=text):
            backend.compile(guide)


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "ab" ("cd" | "ab"*) | "abc" "x"', ["abcd", "abab", "abcx"], ["abc", "abcdx"]),
        ('root ::= [a-z]* "a" # greedy\n', ["a", "bba"], ["b"]),
        (
            'root ::= "(" root? ")" | x{2,3}\nx ::= [^()\\]\\-]',
            ["(())", "ab", "(abc)"],
            ["a", "(--)", "(abcd)"],
        ),
        ('root ::= "[" root "]" | "a" | "abc" | "ab" "c"? "d"\n', ["[abd]", "[[abcd]]", "abc"], ["[ab]"]),
        ('root ::= "\\x41\\u4f60\\n" [\\x30-9_-]+ "/" | ""', ["A你\n1-_9/", ""], ["A你\n/"]),
    ],
)
def test_gbnf_keeps_its_meaning(
    backend: LLGuidanceBackend, grammar: str, good: list[str], bad: list[str]
) -> None:
    """Also where a greedy lexer would go astray."""
    for text in good:
        assert takes(backend, Guide.ebnf(grammar), text), text
    for text in bad:
        assert not takes(backend, Guide.ebnf(grammar), text), text


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('root ::= "a" (= "b")', "no counterpart"),
        ('start ::= "a"', "no rule called root"),
        ("root ::= a", "'a' is not defined"),
        ('root ::= "a"\nroot ::= "b"', "defined twice"),
        ('"a" root ::= "b"', "before the first rule"),
        ('root ::= "\\q"', "escape"),
    ],
)
def test_gbnf_without_a_counterpart(grammar: str, text: str) -> None:
    with pytest.raises(GuideError, match=text):
        to_lark(grammar)
