"""`weft bench strict`: finished answers obey random schemas; one that does not is seen, and told by a small schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from weft.grammar import Guide
from weft_bench.grammar import strict
from weft_bench.grammar.exact_verdict import INVALID, NO_JSON, UNJUDGED, VALID, verdict
from weft_bench.grammar.random_answers import Walker, vocabulary
from weft_bench.grammar.shrink import shrunk
from weft_bench.grammar.strict import Case, Trial, run


@pytest.mark.slow
def test_answers_obey_random_schemas() -> None:
    report = run(seed=0, answers=1200, model=False)
    assert not report.failures, report.failures
    assert report.summary["answers"] >= 1200
    assert {(row["library"], row["on_length"]) for row in report.rows if row["valid"] > 50} == set(
        strict.WAYS
    )


@pytest.mark.slow
def test_answers_obey_more_random_schemas() -> None:
    report = run(seed=1_000_000, answers=8000)
    assert not report.failures, report.failures
    answers = {row["source"]: row["valid"] for row in report.rows if row["library"] == "auto"}
    assert all(answers[source] > 20 for source in ("walk", "value", "model"))
    # Schemas are hard, not so hard that nothing is tried.
    assert report.summary["compiled"] > 0.5 * report.summary["schemas"]
    assert report.summary["unjudged"] < 0.02 * report.summary["answers"]


def test_the_schemas_are_those_of_their_seeds() -> None:
    assert strict.cases(7) == strict.cases(7) != strict.cases(8)


class Unkept(Case):
    """A case whose guide leaves out what no library enforces."""

    def guide(self) -> Guide:
        return Guide.json_schema(self.schema, strict=False)


def test_what_breaks_a_schema_is_told_by_a_smaller_one() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"enum": [0, 1]}, "uniqueItems": True, "minItems": 3}},
        "required": ["a"],
        "title": "of no account",
    }
    trial = Trial(of=Unkept)
    assert trial.run(Unkept(1, schema, "llguidance", "cut", {}))
    assert trial.tried["llguidance", "cut", "walk"].verdicts[INVALID] > 0
    assert len(trial.failures) == 1
    told = trial.failures[0]
    assert (told["seed"], told["library"], told["verdict"]) == (1, "llguidance", INVALID)
    assert json.loads(told["schema"]) == schema
    assert json.loads(told["smaller"]) == {"properties": {"a": {"uniqueItems": True}}}
    assert verdict(json.loads(told["smaller"]), told["answer"]) == INVALID


def test_a_walk_finds_what_is_hard() -> None:
    """A string without a bound shows quotes, escapes, controls and letters beyond ASCII within some walks."""
    import random

    trial, texts = Trial(), []
    case = Case(0, {"type": "string"}, "xgrammar", "cut", {})
    for seed in range(60):
        texts.append(Walker(vocabulary()).walk(random.Random(seed), trial.compiled(case).matcher()) or "")
    found = "".join(texts)
    assert all(part in found for part in (r"\"", r"\\", r"\u", "é", "{", "}")) and not found.isascii()
    assert all(verdict(case.schema, text) == VALID for text in texts if text)


def test_a_schema_shrinks_to_what_shows() -> None:
    schema = {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "null"}, "b": {"minimum": 3}}},
            {"title": "x"},
        ]
    }

    def shows(one: Any) -> bool:
        return isinstance(one.get("allOf"), list) and "minimum" in json.dumps(one)

    assert shrunk(schema, shows) == {"allOf": [{"minimum": 3}]}
    assert shrunk(schema, lambda one: one == schema) == schema
    assert shrunk(schema, lambda one: True, limit_s=0) == schema


@pytest.mark.parametrize(
    ("schema", "text", "said"),
    [
        ({"multipleOf": 0.1}, "0.3", VALID),
        ({"multipleOf": 0.1}, "0.35", INVALID),
        ({"type": "integer", "multipleOf": 7}, "1e9999999", INVALID),
        ({"type": "integer"}, "1e9999999", VALID),
        ({"type": "integer"}, "1.5e1", VALID),
        ({"type": "integer"}, "1.55e1", INVALID),
        ({"exclusiveMinimum": -369.51}, "-369.509999999999999997", VALID),
        ({"exclusiveMinimum": -369.51}, "-369.51", INVALID),
        ({"enum": [0.1]}, "0.10000000000000001", VALID),
        ({"const": 12345678901234567890}, "12345678901234567000", INVALID),
        ({"uniqueItems": True}, "[1, 1.0, true]", INVALID),
        ({"uniqueItems": True}, "[1, true]", VALID),
        ({"pattern": "a$"}, r'"a\n"', INVALID),
        ({"pattern": r"[$]\$"}, '"$$"', VALID),
        ({"pattern": r"^[\w]\W\d\D[^\s]$"}, '"aé1٣x"', VALID),
        ({"pattern": r"^\w$"}, '"é"', INVALID),
        ({"pattern": r"^\S$"}, '"\u00a0"', INVALID),
        ({"patternProperties": {"^a$": False}}, r'{"a\n": 1}', VALID),
        ({"properties": {"a": {"type": "null"}}}, '{"a": 1, "a": null}', INVALID),
        ({"properties": {"a": {"type": "null"}}}, '{"a": null, "a": 1}', INVALID),
        ({}, "NaN", NO_JSON),
        ({}, '"\n"', NO_JSON),
        ({}, '"\udc9a"', NO_JSON),
        ({}, "{1: 2}", NO_JSON),
        ({}, "1e99999999999999999999", UNJUDGED),
        ({"$ref": "#/nowhere"}, "1", UNJUDGED),
        (
            {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True},
            "1",
            INVALID,
        ),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [{"type": "null"}]}, "[1]", INVALID),
    ],
)
def test_verdicts_are_exact(schema: Any, text: str, said: str) -> None:
    assert verdict(schema, text) == said


FORMATS = [
    ("date", "2024-02-29", "2023-02-29 0000-01-01 2024-2-01 ٢٠٢٤-01-01"),
    ("time", "12:00:00Z 23:59:60z 22:59:60.5-01:00 00:00:00.1+23:59", "12:00:60Z 23:59:60+01:00 24:00:00Z 12:00:00"),
    ("date-time", "2024-02-29t12:00:00Z", "2024-02-29_12:00:00Z 2023-02-29T12:00:00Z 2024-02-29T12:00:00.Z"),
    ("duration", "P1Y2M3DT4H5M6S PT1M P4W P1M", "P PT P1Y1D P1W1D PT1H1S P1S"),
    ("email", "a.b@c-d.e a@[1.2.3.4]", "a a..b@c .a@b a@-b a@b_c"),
    ("hostname", "a a-b.c 0", "-a a-.b a..b a_b a."),
    ("ipv4", "0.10.100.255", "1.2.3 1.2.3.256 01.2.3.4 1.2.3.4.5"),
    ("ipv6", "::1 1:2:3:4:5:6:7:8 ::ffff:1.2.3.4", "1::2::3 ::1%e 12345:: :"),
    ("uuid", "00000000-0000-0000-0000-00000000000A", "0000000-00000-0000-0000-000000000000"),
    ("uri", "http://a@b:1/c?d#e a: urn:x:y http://[::1]", "//a a/b http://a%2 http://a|b 1a:b"),
    ("uri-reference", "//a /b c/d:e ?q #f a:b", "1:b a|b %a ##"),
    ("uri-template", "a{b}{?c,d*}{e:3}", "{} {a {a|b}{ { a} {a:0}"),
    ("json-pointer", "/ /a~0b/~1 /é", "a /~ /~2"),
    ("relative-json-pointer", "0 1/a 10#", "01/a -1 /a #"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "good", "bad"), FORMATS, ids=lambda value: value)
def test_formats_are_those_of_their_documents(form: str, good: str, bad: str) -> None:
    schema = {"type": "string", "format": form}
    assert {text: verdict(schema, json.dumps(text)) for text in good.split()} == dict.fromkeys(
        good.split(), VALID
    )
    assert {text: verdict(schema, json.dumps(text)) for text in bad.split()} == dict.fromkeys(
        bad.split(), INVALID
    )
