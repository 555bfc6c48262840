"""Patterns of schemas are searched by Python where that takes few ways, and else are not to be known."""

from __future__ import annotations

import pytest

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
