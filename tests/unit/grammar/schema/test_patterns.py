"""Patterns of schemas are searched by Python where that takes few ways, and else are not to be known."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from support.grammar.kept import hold
from weft.grammar.schema import patterns

KNOWN = [
    ("^[0-9]+$", "12", True),
    (r"^\d{4}-\d{2}-\d{2}$", "2024-01-02", True),
    ("^([a-z]|[ ])*$", "a b c" * 30, True),
    ("https://example.com/*", "see https://example.com/", True),
    ("a*b", "a" * 200, False),
    ("^a*a*$", "a" * 199 + "!", False),
    ("(a|aa)" * 10 + "$", "a" * 90 + "!", False),
    ("(one|two) (red|green)", "two green", True),
    (r"^(\w\d)+$", "a1b2", True),
    ("", "abc", True),
]
ENDLESS = [
    ("^(a|aa)+$", "a" * 60 + "!"),
    ("^(a*)*$", "a" * 60 + "!"),
    ("^(|a)+$", "a" * 60 + "!"),
    ("a*a*a*a*b", "a" * 200),
    ("a?" * 30 + "a" * 30, "a" * 29),
    ("(a|aa)" * 20 + "$", "a" * 60 + "!"),
    ("^(a?){50}$", "!"),
]


@pytest.mark.parametrize(("pattern", "text", "is_found"), KNOWN)
def test_few_ways_are_tried(pattern: str, text: str, is_found: bool) -> None:
    assert patterns.is_found(pattern, text) is is_found


@pytest.mark.parametrize(("pattern", "text"), ENDLESS)
def test_many_ways_are_not_tried(pattern: str, text: str) -> None:
    """Each would take hours."""
    assert patterns.is_found(pattern, text) is None


DECIMAL = r"^(?!^[-+.]*$)[+-]?0*"
"""The beginning of the pattern that pydantic 2.12 and 2.13 write for a `Decimal`."""


@pytest.mark.parametrize(
    "rest",
    [r"\d*\.?\d*$", r"\d*\.?\d{0,2}0*$", r"\d*\.?\d{0,0}0*$"],
    ids=["any", "two places", "no places"],
)
def test_a_decimal_needs_no_look_around(rest: str) -> None:
    pattern = patterns.without_look_around(DECIMAL + rest)
    assert "(?!" not in pattern
    for length in range(7):
        for letters in itertools.product("+.05a", repeat=length):
            text = "".join(letters)
            assert bool(re.search(pattern, text)) == bool(re.search(DECIMAL + rest, text)), text


@pytest.mark.parametrize(
    ("rest", "good", "bad"),
    [
        (r"(?:\d{0,4}|(?=[\d.]{1,7}0*$)\d{0,4}\.\d{0,2}0*$)", ["1", "-1234.5", "0.25", ".5", "12.340"],
         ["12345", "1.234", "", "."]),
        (r"(?:\d{0,3}|(?=[\d.]{1,4}0*$)\d*\.\d*0*$)",
         ["1", "+12.3", "123", ".123", "1.2300"], ["1234", "12.34", "a"]),
        (r"(?:\d{0,0}|(?=[\d.]{1,3}0*$)\d{0,0}\.\d{0,3}0*$)", ["0.25", ".5", "-0.2500"], ["0", "0.", ".125", "1.5"]),
    ],
    ids=["digits and places", "digits", "places alone"],
)  # fmt: skip
def test_a_decimal_of_few_digits_has_its_bounds(rest: str, good: list[str], bad: list[str]) -> None:
    pattern = patterns.without_look_around(DECIMAL + rest)
    assert all(re.search(pattern, text) and re.search(DECIMAL + rest, text) for text in good)
    assert not any(re.search(pattern, text) for text in bad)
    schema = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": DECIMAL + rest}]}
    texts = [json.dumps(text) for text in good]
    assert hold(schema, texts, [json.dumps(text) for text in bad if not re.search(DECIMAL + rest, text)]) == 2


def test_any_other_look_around_stays() -> None:
    long = r"\d*\.?\d{0," + "9" * 5000 + r"}0*$"
    for pattern in ("^(?=a)b", DECIMAL + "a", "^(?!^[-+.]*$)", DECIMAL + long):
        assert patterns.without_look_around(pattern) == pattern
