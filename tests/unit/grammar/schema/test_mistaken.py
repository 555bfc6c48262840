"""What a grammar library takes for something else than the specification does is spelled otherwise, or refused."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from support.grammar.grammars import END, small_vocabulary
from weft.errors import GuideError
from weft.grammar import Guide
from weft.grammar.auto import AutoBackend, Libraries
from weft_bench.grammar.exact_verdict import VALID, verdict


@functools.cache
def libraries() -> Libraries:
    return AutoBackend(small_vocabulary()).libraries


def takes(library: str, schema: Any, text: str) -> bool:
    compiled = libraries()[library].compile(Guide.json_schema(schema))
    tokens = [*(3 + byte for byte in text.encode("utf-8", "surrogateescape")), END]
    return compiled.matcher().validate(tokens) == len(tokens)


# Texts that a pattern matches, and others; those in bytes are no UTF-8.
MISTAKEN = [
    (r"^a(?:\.[0-9]+)?z$", ["az", "a.5z"], ["a5z", "a.z"]),
    (r"^(ab+)??$", ["", "abb"], ["b", "bb"]),
    (r"^(\(b+)?\)?c$", ["c", "(bb)c", ")c"], ["b)c", "bc"]),
    (r"^[^a]$", ["b", "é", "ࠀ", "😀"], ["a", "\udce0\udc9a\udc92", "\udcf0\udc80\udc80\udc80"]),
    (r"^[^\d]+$", ["bé"], ["b1", "\udce0\udc9a\udc92"]),
    (r"^\S.$", ["é😀"], [" a", "\u00a0a", "a\udce0\udc9a\udc92"]),
    (r"^[^é]+$", ["a", "ê", "語"], ["é"]),
    (r"^[^\u00e9\-\]]+$", ["a", "ê"], ["é", "-", "]"]),
    ('^[^"]+$', ["a"], ['"']),
    (r"^[^\\]+$", ["a"], ["\\", "a\\b"]),
    (r"^[^\x5c\x22]+$", ["a", "[", "]"], ["\\", '"', 'a"']),
]


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(("pattern", "good", "bad"), MISTAKEN, ids=lambda value: ascii(value))
def test_patterns_mean_the_same_to_both(library: str, pattern: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": "string", "pattern": pattern}
    for text in good + bad:
        assert takes(library, schema, json.dumps(text, ensure_ascii=False)) == (text in good), ascii(text)
    for text in ('"""', '"\\"', '"\n"', '"\x01"', '"a"b"'):  # no JSON
        assert not takes(library, schema, text), text


@pytest.mark.parametrize("bounds", [{"minLength": 1}, {"maxLength": 2}, {"minLength": 2, "maxLength": 90}])
def test_bounded_strings_are_utf8(bounds: dict[str, int]) -> None:
    schema = {"type": "string", **bounds}
    for text in (b"\xe0\xa0\x80a", b"a\xf0\x9f\x98\x80", b"\xc3\xa9\x7f", b"\xed\x9f\xbf\xee\x80\x80"):
        assert takes("xgrammar", schema, f'"{text.decode()}"')
    for text in (
        b"\xe0\x9a\x92a",
        b"a\xf0\x89\xbc\x85",
        b"\xc1\xbfa",
        b"a\xed\xa0\x80",
        b"a\xf4\x90\x80\x80",
    ):
        assert not takes("xgrammar", schema, f'"{text.decode("utf-8", "surrogateescape")}"')


@pytest.mark.parametrize("pattern", [r"^[\x00-!]$", r"^[\x00-\x1f]$", r"^[^\s\S]|[\x00-\x5b]$"])
def test_classes_with_control_characters_hold_no_quotes_beside(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    texts = ["\x01", "\n", '"', "\\", "!", "a"]
    found = [text for text in texts if takes("llguidance", schema, json.dumps(text))]
    assert found == [text for text in texts if verdict(schema, json.dumps(text)) == VALID]


OF_FORMATS = [
    ("time", ["12:00:00Z", "00:00:00.5-01:30"], ["12:00:60Z", "23:59:60+01:00", "12:00:000Z"]),
    ("date-time", ["2024-02-29T12:00:00.5Z"], ["2024-02-29T12:00:005Z", "2024-02-29T12:00:60Z"]),
    ("ipv4", ["0.10.100.255"], ["01.2.3.4", "1.2.3.004", "1.2.3.256"]),
    ("email", ["a.b@c-d.e"], ["a..b@c", "a@-b", "a"]),
]


@pytest.mark.parametrize("library", ["xgrammar", "llguidance"])
@pytest.mark.parametrize(("form", "good", "bad"), OF_FORMATS)
def test_formats_mean_the_same_to_both(library: str, form: str, good: list[str], bad: list[str]) -> None:
    for text in good + bad:
        assert takes(library, {"type": "string", "format": form}, json.dumps(text)) == (text in good), ascii(
            text
        )


def test_pointers_are_strings_of_json() -> None:
    for form, good in (
        ("json-pointer", ["", "/", "/a~0b/~1é"]),
        ("relative-json-pointer", ["0", "1/a", "10#"]),
    ):
        schema = {"type": "string", "format": form}
        for text in [*good, "a", "/~", "/~2", "01", "0/~"]:
            assert takes("xgrammar", schema, json.dumps(text, ensure_ascii=False)) == (text in good), ascii(
                text
            )
        for text in ('"/\n"', '"0/"a"', '"/\\q"', '"0/\x00"'):
            assert not takes("xgrammar", schema, text), text


def test_emails_have_escapes_of_json_only() -> None:
    for text in (r'"\"\@\"@a"', r'"\"a\.b\"@c"'):
        assert not takes("xgrammar", {"type": "string", "format": "email"}, text)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("xgrammar", {"const": (1 << 64) - 1}, "18446744073709551615 has more digits"),
    ("llguidance", {"enum": ["a", {"b": [(1 << 53) + 1]}]}, "9007199254740993 has more digits"),
    ("xgrammar", {"type": "number", "maximum": (1 << 63) - 1}, "maximum 9223372036854775807 has more digits"),
    ("llguidance", {"type": "integer", "minimum": (1 << 53) + 1}, "minimum 9007199254740993 has more digits"),
    (
        "xgrammar",
        {"type": "integer", "multipleOf": (1 << 53) + 1},
        "multipleOf 9007199254740993 has more digits",
    ),
    ("xgrammar", {"type": "object", "patternProperties": {"a^b": {}}}, "without the anchors in its midst"),
]


@pytest.mark.parametrize(("library", "schema", "reason"), REFUSED)
def test_what_a_library_mistakes_is_refused(library: str, schema: Any, reason: str) -> None:
    with pytest.raises(GuideError, match=reason):
        libraries()[library].compile(Guide.json_schema(schema))


def test_integers_are_taken_as_far_as_they_are_held() -> None:
    most = (1 << 63) - 1
    assert takes("xgrammar", {"const": most}, str(most)) and not takes(
        "xgrammar", {"const": most}, str(most + 1)
    )
    for library in ("xgrammar", "llguidance"):
        schema = {"type": "integer", "maximum": most}
        assert takes(library, schema, str(most)) and not takes(library, schema, str(most + 1))
        assert takes(library, {"enum": [1 << 53, 0.1]}, str(1 << 53))
