"""What patterns and formats match: values, in JSON's spelling, whichever library compiled them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.grammar.kept import LIBRARIES, NULL, backend, hold, sampled, takes
from weft.errors import GuideError
from weft.grammar import Guide
from weft.grammar.schema import formats

# A pattern; values that it matches, and some that it does not. Each is written with all escapes that it needs.
PATTERNS: list[tuple[str, list[str], list[str]]] = [
    ("^[^é]+$", ["ab", 'a"b', "a\\b", "a\nb", "\x00"], ["é", ""]),
    ("^[^é]{1,200}$", ['b"b'], ["é"]),
    ("^é[^a]$", ['é"', "é\\"], ["éa", '"a']),
    ("^[^\\u00e9]$", ['"', "a"], ["é"]),
    ('^[^a]b"$', ['"b"', 'xb"'], ['ab"', "xb"]),
    ("^\\n[^é]$", ["\n\n", '\n"'], ["\né", "n"]),
    ('^[\\]\\\\"]{2}$', ["]]", '"\\'], ["a]"]),
    ("^\\S+$", ['a"b', "é"], ["a b", "\t", "\u00a0", "\u2003"]),
    ("^\\W+$", ['"', "é", "\n"], ["a", "_"]),
    ("^\\D+$", ["a", "\\"], ["1"]),
    ("^[\\W\\d]$", ['"', "1"], ["a"]),
    ("^.{1,3}$", ["a", '"', "\t\\"], ["\n", "\r", "\u2028", "aaaa"]),
    ("^(?:é|[^\\u0000-\\u007f])$", ["é", "語", "😀"], ["a", '"']),
    ("^[😀-😎]$", ["😃"], ["a", "\U0001f600\U0001f600"]),
    ("^\\ud83d\\ude00$", ["😀"], ["a"]),
    ("^[\\s\\S]*$", ["", 'a"\n\\\x1f\x7f'], []),
    ("^[\\x00-\\x1f]+$", ["\x00\n\x1f"], ["a", " "]),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), PATTERNS, ids=lambda value: ascii(value)[:40])
def test_patterns_match_values_not_their_spelling(pattern: str, good: list[str], bad: list[str]) -> None:
    """Also in names, and in what "not" comes to. LLGuidance has no U+007F, and no U+0000 in some classes."""
    texts = [json.dumps(value, ensure_ascii=False) for value in good]
    raw = [f'"{value}"' for value in [*good, *bad] if not is_json(f'"{value}"')]
    refused = [*(json.dumps(value, ensure_ascii=False) for value in bad), *raw]
    for library in LIBRARIES:
        try:
            guide = Guide.json_schema({"type": "string", "pattern": pattern})
            compiled = backend().libraries[library].compile(guide)
        except GuideError:
            assert library == "llguidance"
            continue
        for text in texts:
            is_unsaid = library == "llguidance" and ("\x7f" in text or "u0000" in text)
            assert takes(compiled, text) or is_unsaid, (library, text)
        for text in refused:
            if not (library == "llguidance" and pattern.startswith("^.")):  # its dot takes line ends but \n
                assert not takes(compiled, text), (library, text)
        for seed in range(12):
            found = sampled(compiled, seed, frozenset(b'"\\abn'))
            assert found is None or isinstance(json.loads(found), str), (library, found)
    named: list[dict[str, Any]] = [
        {"patternProperties": {pattern: NULL}, "additionalProperties": False},
        {"propertyNames": {"pattern": pattern}, "additionalProperties": NULL},
    ]
    for parts in named:
        guide = Guide.json_schema({"type": "object", **parts})
        compiled = backend().libraries["xgrammar"].compile(guide)
        assert all(takes(compiled, f"{{{text}: null}}") for text in texts)
        assert not any(takes(compiled, f"{{{text}: null}}") for text in refused)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


CHARACTERS = ['"', "\\", "/", "\n", "\t", "\r", "\b", "\f", "\x01", "\x1f", "a", "n", "u", "0", " ", "é"]
CLASSES = [
    *(
        f"[{no}{one}{other}]"
        for no in ("^", "")
        for one in (r"\x22", r"\x5c", r"\x0a")
        for other in ("", r"\x5c", "a")
    ),
    *(
        "[!-/]",
        "[#-~]",
        r"[\x00-\x20]",
        r"[\x20-\x7e]",
        r"[^\x20-\x7e]",
        "[^a-z]",
        r"\d",
        r"\D",
        r"\w",
        r'[^\d"]',
    ),
    *(r"[\x00-\x1f]", r"[\x00-\x1f\x22]", r"[\x0b-\u00ff]", r"[^\x0a\x22]", r"[^\x01]"),
]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("text", CLASSES)
def test_a_class_matches_its_characters(library: str, text: str) -> None:
    """In each spelling that JSON has for them; those that it needs must be there."""
    compiled = (
        backend().libraries[library].compile(Guide.json_schema({"type": "string", "pattern": f"^{text}$"}))
    )
    for char in CHARACTERS:
        is_in = re.fullmatch(text, char, re.ASCII) is not None
        assert takes(compiled, json.dumps(char, ensure_ascii=False)) == is_in, char
        assert is_in or not takes(compiled, f'"\\u{ord(char):04x}"'), char


REPEATED = [
    ("^[0-9]{2}(\\.[0-9]+)?$", ["12", "12.5"], ["125", "12."]),
    ("^(b*a)?$", ["", "a", "bba"], ["b"]),
    ("^(ab+)*$", ["", "abb", "abab"], ["b", "abba"]),
    ("^(ab+){0,2}c$", ["c", "abbabc"], ["bc", "abababc"]),
    ("^(b*a)*c?$", ["", "bac"], ["b", "bc"]),
    ("^((a+)?b*)*c$", ["c", "aabac"], ["a", ""]),
    ("^(a(b+c)?)*?$", ["", "abbcaa"], ["b", "bc", "ab"]),
    ("^(a|b+){0}c$", ["c"], ["ac", "bc"]),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), REPEATED)
def test_groups_that_may_be_missing_are_whole(pattern: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert hold(schema, [f'"{text}"' for text in good], [f'"{text}"' for text in bad]) == 2


DENIED: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"const": "é"}, ['"a"', r'"\""', '"ée"', '""'], ['"é"', '"""', '"a"b"']),
    ({"enum": ["é", 'a"', "b\n"]}, ['"a"', r'"a\"b"', r'"b\n\n"'], ['"é"', r'"a\""', r'"b\n"', '"a"b"']),
    ({"pattern": "^[é]+$"}, ['"a"', r'"\"é"', '""'], ['"é"', '"éé"', '"a"b"']),
    ({"maxLength": 1}, ['"ab"'], ['"a"', '"""', '"a"b"']),
]


@pytest.mark.parametrize(("denied", "good", "bad"), DENIED, ids=str)
def test_what_is_denied_leaves_json(denied: dict[str, Any], good: list[str], bad: list[str]) -> None:
    assert hold({"type": "string", "not": denied}, good, bad) >= 1


@pytest.mark.parametrize(
    "pattern", [r"\bx", r"\Bx", r"(a)\1", r"\p{L}", "a**", "[b-a]", r"[^\s\S]", r"\q", "(?i)a", "((", "a)"]
)
def test_what_a_pattern_can_not_say_is_refused(pattern: str) -> None:
    with pytest.raises(GuideError):
        backend().libraries["xgrammar"].compile(Guide.json_schema({"type": "string", "pattern": pattern}))


# By format: what is one, and what is none.
FORMATS: dict[str, tuple[list[str], list[str]]] = {
    "date": (["2024-02-29"], ["2023-02-29", "2024-2-1"]),
    "time": (["23:59:59Z", "00:00:00.5+01:00"], ["24:00:00Z", "12:00:60Z", "12:00:00"]),
    "date-time": (["2024-02-29T23:59:59.5Z"], ["2023-02-29T00:00:00Z", "2024-02-29 23:59:59Z"]),
    "duration": (["P1Y2M3DT4H5M6S", "PT1S", "P2W"], ["P", "PT", "P1", "P1YT", "P1Y2W", "P1Y1D"]),
    "email": (["a.b+c@d-e.org", '"a b"@c.de'], ["a", "a@", ".a@b", "a.@b", 'a"b@c', "a@-b"]),
    "hostname": (["a.b-c.de", "a" * 63], ["-a", "a-", "a..b", "a" * 64, 'a"']),
    "ipv4": (["0.10.255.77"], ["77.222.30.066", "256.1.1.1", "1.2.3"]),
    "ipv6": (["::", "1::8", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"], ["1::2::3", "12345::", "::1.2.3.04", ":"]),
    "uuid": (["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08aa9811eab4aa73b441d16380"]),
    "uri": (["http://a.b/c?d#e", "urn:a:b", "a1+x:"], ["//a/b", "a b:c", '1a:b"', 'a:"', "a:\\"]),
    "uri-reference": (["/a/b", "#x", "a:b", "a/b:c", ""], ['"', "a\\b", "a b", "%zz"]),
    "uri-template": (["a{b}/{+c,d*}", "{?x:3}"], ["{", "}", "{}", '"', "\\", "a b"]),
    "json-pointer": (["", "/a/~0~1", '/"\\\n'], ["a", "/~2", "/~"]),
    "relative-json-pointer": (["0#", "1/a", '2/"'], ["01", "/a", "-1", "1/~2"]),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_formats_are_values_in_json(library: str, form: str) -> None:
    compiled = backend().libraries[library].compile(Guide.json_schema({"type": "string", "format": form}))
    good, bad = FORMATS[form]
    for value in good:
        assert takes(compiled, json.dumps(value)), value
    for value in bad:
        assert not takes(compiled, json.dumps(value)), value
        assert not takes(compiled, f'"{value}"'), value
    matches = re.compile(formats.PATTERNS[form])
    for seed in range(30):
        found = sampled(compiled, seed, frozenset("".join(good + bad).encode()))
        assert found is None or matches.fullmatch(json.loads(found)), found


def test_every_format_is_tried() -> None:
    assert set(FORMATS) == set(formats.PATTERNS)
