"""What the demo says of an answer: the validator's message, and the place in the text that it means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.demo.forms import FORMS, closed
from weft.demo.verdict import MOST, fault, span

AGE = closed(name={"type": "string"}, age={"type": "integer", "maximum": 60})
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=6)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


def steps(value: Any) -> list[tuple[str | int, ...]]:
    """The paths to everything in a value."""
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [(), *((step, *rest) for step, inner in members for rest in steps(inner))]


@given(VALUES, st.sampled_from([None, 2]))
def test_every_value_is_found_where_it_stands(value: Any, indent: int | None) -> None:
    text = " " + json.dumps(value, indent=indent) + "\n"
    for path in steps(value):
        expected = value
        for step in path:
            expected = expected[step]
        begin, end = span(text, path)
        assert json.loads(text[begin:end]) == expected and text[begin:end] == text[begin:end].strip()


def test_the_last_of_equal_names_is_the_one_that_counts() -> None:
    text = '{"a": 1, "a": [2]}'
    begin, end = span(text, ["a", 0])
    assert text[begin:end] == "2" and json.loads(text)["a"][0] == 2


@pytest.mark.parametrize(
    ("text", "means", "says"),
    [
        ('{"name": "Ada", "age": 61}', "61", "$.age: 61 is greater than the maximum of 60"),
        ('{"name": 5, "age": 1}', "5", "$.name: 5 is not of type 'string'"),
        ('{"name": "Ada"}', '{"name": "Ada"}', "$: 'age' is a required property"),
        ('{"name": "Ada", "age": 1}}', "}", "not JSON: Extra data"),
        ('{"name": "Ada" oh', "oh", "not JSON: Expecting ',' delimiter"),
        ('{"name": "Ada"', "", "not JSON: Expecting ',' delimiter"),
        ("", "", "not JSON: Expecting value"),
    ],
)
def test_a_fault_is_marked_where_it_is(text: str, means: str, says: str) -> None:
    found = fault(text, AGE)
    assert found is not None and found.message.startswith(says)
    assert text[found.begin : found.end] == means


def test_long_messages_keep_both_ends() -> None:
    found = fault(json.dumps({"name": ["x" * 200], "age": 1}), AGE)
    assert found is not None and len(found.message) <= MOST + 30
    assert found.message.startswith("$.name: ['xx") and found.message.endswith("is not of type 'string'")


def test_what_fits_has_no_fault() -> None:
    assert fault('{"name": "Ada", "age": 60}', AGE) is None


def test_forms_are_of_different_shapes() -> None:
    assert len({form.prompt for form in FORMS}) == len({form.asks for form in FORMS}) == len(FORMS)
    assert all("\n" not in form.text for form in FORMS)
