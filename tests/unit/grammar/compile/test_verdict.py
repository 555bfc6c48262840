"""What `jsonschema` says of answers: by the declared draft, with formats, from nowhere else, and in bounded time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from support.grammar.grammars import small_vocabulary
from weft.grammar import Guide
from weft.grammar.compile.verdict import Verdicts, guided_part, is_judged


@pytest.fixture(scope="module")
def verdicts() -> Iterator[Verdicts]:
    made = Verdicts()
    yield made
    made.close()


def loose(schema: Any) -> Guide:
    return Guide.json_schema(schema, strict=False)


@pytest.mark.parametrize(
    ("schema", "text", "verdict"),
    [
        ({"type": "array", "uniqueItems": True}, "[1, 2]", True),
        ({"type": "array", "uniqueItems": True}, "[1, 1]", False),
        ({"type": "string", "format": "date"}, '"2023-02-29"', False),
        ({"type": "string", "format": "date"}, '"2024-02-29"', True),
        ({"type": "integer"}, "{", False),
        (True, "1", True),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True},
            "3",
            False,
        ),
        ({"$ref": "http://json-schema.org/draft-07/schema#"}, '{"type": "colour"}', False),
        ({"$ref": "http://example.org/schema"}, "1", None),
        ({"pattern": "("}, '"a"', None),
    ],
)
def test_what_it_says(verdicts: Verdicts, schema: Any, text: str, verdict: bool | None) -> None:
    assert verdicts.obeys(loose(schema), text) is verdict


def test_a_question_that_takes_for_ever_is_given_up() -> None:
    doubling: dict[str, Any] = {"$defs": {"d40": {"const": 2}}, "$ref": "#/$defs/d0"}
    for i in range(40):
        doubling["$defs"][f"d{i}"] = {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}
    verdicts = Verdicts(cpu_s=0.5)
    for schema, text in [({"pattern": "^(a|aa)+$"}, '"' + "a" * 60 + '!"'), (doubling, "1")]:
        assert verdicts.obeys(loose(schema), text) is None
        assert verdicts.obeys(loose({"const": 1}), "1") is True, "the next question is answered"
    verdicts.close()
    assert verdicts.obeys(loose({"const": 1}), "1") is None


def test_which_part_of_an_answer_it_is_asked_of() -> None:
    vocabulary = small_vocabulary()

    def decode(tokens: Any) -> str:
        return vocabulary.decode(list(tokens)).decode()

    def asked(guide: Guide, text: str) -> tuple[Guide, str]:
        return guided_part(guide, text, [3 + byte for byte in text.encode()], vocabulary, decode)

    schema = loose({"type": "integer"})
    assert asked(schema, "1") == (schema, "1")
    assert asked(Guide.after("so", schema), "and so 1") == (schema, " 1")
    assert asked(Guide.after(3 + ord("!"), Guide.after("so", schema)), "so! so 1") == (schema, " 1")
    assert asked(Guide.after("so", Guide.regex("1")), "and so 1") == (Guide.regex("1"), " 1")
    assert not is_judged(Guide.json_schema({"type": "integer"})), "a strict guide needs no verdict"
    assert not is_judged(Guide.regex("a"))


def test_guides_that_are_judged() -> None:
    loose, strict = Guide.json_schema({"type": "object"}, strict=False), Guide.json_schema({"type": "object"})
    assert is_judged(loose) and is_judged(Guide.after("<a>", Guide.after("<b>", loose)))
    assert not any(map(is_judged, (strict, Guide.after("<a>", strict), Guide.regex("a"))))


def test_long_answers_fit(verdicts: Verdicts) -> None:
    text = json.dumps(["a" * 100] * 20_000)
    assert verdicts.obeys(loose({"type": "array", "items": {"type": "string"}}), text) is True
