"""A complement is found in exactly the texts in which its pattern is not; the sizes of texts that patterns tell."""

from __future__ import annotations

import json
import random
import re
import time
from typing import Any

import pytest

from weft.grammar.schema import formats, patterns
from weft.grammar.schema.rewrite import rewrite
from weft_bench.grammar.exact_verdict import VALID, verdict

INVERTED = [
    "a",
    "^a",
    "a$",
    "^a$",
    "^$",
    "^(a|b)*$",
    "^[ab]{1,2}$",
    "^a|b$",
    r"^-?\d+/\d+$",
    r"^-?0x1\.[0-9a-f]{13}p[+-]\d+$",
    r"^\d+\.?\d*%?$",
    "^\\{[\\{%](.|[\r\n])*[\\}%]\\}$",
    r"\w3",
    "a5b",
    "^[^a]$",
    "^.*b.$",
    "^ab{0,2}c?$",
    r"^[\s\]^-]\S+?[^\d\\]*$",
    r"^(?:ansible\.)?(?:a|b(?:c|)){2}$",
]


@pytest.mark.parametrize("count", [40, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pattern", INVERTED)
def test_a_complement_is_found_where_its_pattern_is_not(pattern: str, count: int) -> None:
    inverse = patterns.inverse(pattern)
    assert inverse is not None
    rng = random.Random(0)
    letters = "ab15\n.cz -/x03p%{}7]^\\é"
    for _ in range(count):
        known = letters[: rng.choice([4, len(letters)])]
        text = json.dumps("".join(rng.choice(known) for _ in range(rng.randrange(8))))
        is_found = verdict({"pattern": pattern}, text) == VALID
        assert (verdict({"pattern": inverse}, text) == VALID) != is_found, text


@pytest.mark.parametrize(
    "pattern", ["", "x?", "(^a)b", r"\bx", "(?=a)", r"(a)\1", "[a-z]{300}", "(a|b)*a(a|b){9}$", "("]
)
def test_some_have_none(pattern: str) -> None:
    begin = time.thread_time()
    assert patterns.inverse(pattern) is None
    assert time.thread_time() - begin < 10  # an automaton that explodes takes minutes


def test_a_complement_is_taken_by_the_rewriting() -> None:
    schema = {"oneOf": [{"type": "string", "pattern": r"^\d+$"}, {"type": "string", "pattern": "^1"}]}
    written = json.dumps(rewrite(schema, open_objects=True).schema)
    assert '"not"' not in written
    for text in ("1", "2", "1a", "a", ""):
        assert verdict(json.loads(written), json.dumps(text)) == verdict(schema, json.dumps(text)), text


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [
        ("^....$", 4, 4),
        ("a{2}b?", 2, None),
        ("^a+$", 1, None),
        ("^a?b$", 1, 2),
        ("^", 0, None),
        ("(?=a)bc", 0, None),
    ],
)
def test_patterns_tell_how_long_texts_are(pattern: str, least: int, most: int | None) -> None:
    assert patterns.lengths(pattern) == (least, most)


@pytest.mark.parametrize("bounds", [{"minLength": 5}, {"maxLength": 3}])
def test_texts_too_short_or_too_long_for_a_pattern_are_none(bounds: dict[str, int]) -> None:
    schema = {"anyOf": [{"type": "string", "pattern": "^[a-z]{4}$", **bounds}, {"type": "null"}]}
    assert "pattern" not in json.dumps(rewrite(schema).schema)


PLACES = range(1, 12)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "contains": {"type": "null"}},
        pytest.param({"type": "array", "not": {"items": {"type": "number"}}}, marks=pytest.mark.slow),
        pytest.param(
            {
                "oneOf": [
                    {"type": "array", "items": {"type": "number"}},
                    {"type": "array", "items": {"type": ["number", "string"]}},
                ]
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_a_long_array_contains_stands_among_the_first(schema: Any) -> None:
    written = rewrite(schema, open_objects=True).schema
    assert not {"not", "contains"} & set(re.findall(r'"(\w+)":', json.dumps(written)))
    for length in PLACES:
        for place in range(length):
            for other in (None, "x", 7):
                value = json.dumps([*[1] * place, other, *[1] * (length - place - 1)])
                found, wanted = verdict(written, value), verdict(schema, value)
                assert found == wanted or (found != VALID and place >= 8), value


def test_nothing_is_said_to_be_impossible_that_only_was_not_looked_at() -> None:
    """No item among the first eight may be null."""
    schema = {"type": "array", "contains": {"type": "null"}, "prefixItems": [{"type": "integer"}] * 8}
    found = rewrite(schema, open_objects=True)
    assert found.reason and found.schema == schema


def test_formats_exclude_and_imply_each_other() -> None:
    hosts: Any = {"type": "string", "oneOf": [{"format": name} for name in ("hostname", "ipv4", "ipv6")]}
    written = json.dumps(rewrite(hosts).schema)
    assert '"not"' not in written and '"ipv4"' not in written  # each of those is a hostname, too
    for text in ("a.b", "1.2.3", "1.2.3.4", "::1", "a_b"):
        assert verdict(json.loads(written), json.dumps(text)) == verdict(hosts, json.dumps(text)), text
    assert formats.are_apart(["date", "time"]) and not formats.are_apart(["hostname", "date"])


REGEXES = r"^a$ [a-z]+ (a|b)*c{2} ^\d{4}-\d{2}$ a** [z-a] ( [] \ ^* a{2}{3} (?:a(b)) x{3,1} ^[A-Za-z0-9_-]+$ (|)* a??"
REGEXES += r" [^\s] .*\.js$ (^)* a{,2} { (a)) *"


@pytest.mark.parametrize("text", REGEXES.split())
def test_regexes_that_are_generated_are_regexes(text: str) -> None:
    if re.fullmatch(formats.REGEX[1:-1], text):
        assert verdict({"format": "regex"}, json.dumps(text)) == VALID
    written = rewrite({"type": "string", "format": "regex", "minLength": 1}).schema
    assert written == {"type": "string", "minLength": 1, "pattern": formats.REGEX}
