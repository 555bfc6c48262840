"""Open objects with LLGuidance: every order of their properties, each property once, and nothing that is not valid."""

from __future__ import annotations

import json
import random
from itertools import islice, permutations
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from support.grammar.grammars import END, allowed, ids, new_row, small_vocabulary, takes
from weft.grammar import Guide
from weft.grammar.llguidance import backend as adapter
from weft.grammar.llguidance.backend import LLGuidanceBackend

FIVE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "string", "maxLength": 3},
        "c": {"type": "boolean"},
        "d": {"type": ["null", "integer"]},
        "é\n": {"enum": [1, "x"]},
    },
    "required": ["c", "a"],
}
VALUES = {"a": 1, "b": "x", "c": True, "d": None, "é\n": "x"}
NODE = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"$ref": "#/$defs/node"}, "minItems": 1, "maxItems": 3},
        "b": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/node"}, {"type": "string", "maxLength": 2}]},
        "c": {"type": "array", "prefixItems": [FIVE, {"type": "integer"}], "items": FIVE, "minItems": 1},
        "d": {"type": "object", "additionalProperties": {"$ref": "#/$defs/closed"}},
        "e": False,
        "f": {"type": "array", "prefixItems": [{"$ref": "#/$defs/closed"}], "items": False},
        "g": {"$ref": "#/$defs/list"},
    },
    "required": ["b"],
}
CLOSED = {
    "type": "object",
    "properties": {name: {"type": "integer"} for name in ("a", "b", "c", "d", "e", "f")},
    "required": ["f"],
    "additionalProperties": False,
}
LIST = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/list"}}]}
PARTS = [
    ids(text)
    for text in (*(f'"{name}": ' for name in "abcdefgz"), *"1[]{", "}", "}", ", ", "true", "null", '"x"')
]
TREE = {"$ref": "#/$defs/node", "$defs": {"node": NODE, "closed": CLOSED, "list": LIST}}
PATTERNS: dict[str, Any] = {
    **FIVE,
    "properties": {name: FIVE["properties"][name] for name in "abcd"} | {"e": True},
    "patternProperties": {"^[xb]": {"type": ["string", "integer"]}},
}
NESTED = {
    "b": {"b": 3, "a": [{"b": "x"}, {"b": {"b": 1}}]},
    "a": [{"b": 1, "d": {}}],
    "c": [VALUES, 3, {"c": False, "a": 2, "zz": [{}]}, {"a": 1, "c": True}],
    "d": {"x": {"f": 1, "a": 2, "e": 4}, "y": {"f": 2}},
    "f": [{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6}],
    "g": [None, [[], [None]]],
    "more": {"b": 1, "a": 2},
}


def shuffled(rng: random.Random, value: Any) -> Any:
    """The same value, its objects' members in another order."""
    if isinstance(value, list):
        return [shuffled(rng, item) for item in value]
    if not isinstance(value, dict):
        return value
    members = [(name, shuffled(rng, item)) for name, item in value.items()]
    rng.shuffle(members)
    return dict(members)


def broken(rng: random.Random, value: Any) -> Any:
    """The value with one part of it changed or missing."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice([None, {}, [], 7, "word", True])
    copy = value.copy()
    key = rng.choice(list(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
    if rng.random() < 0.3:
        del copy[key]
    else:
        copy[key] = broken(rng, copy[key])
    return copy


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_each_order_is_taken_among_others_that_are_not_named(backend: LLGuidanceBackend, every: int) -> None:
    guide = Guide.json_schema(FIVE, open_objects=True)
    for names in islice(permutations([*VALUES, "z"]), 0, None, every):
        text = json.dumps({name: VALUES.get(name, [1]) for name in names}, ensure_ascii=False)
        assert takes(backend, guide, text), text


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"c": true}',
        '{"b": "x", "z": 1, "a": 1}',
        '{"a": 1, "c": true, "a": 2}',
        '{"a": 1, "z": 1, "c": true, "a": 1}',
        '{"c": 1, "a": 1}',
        '{"a": 1, "c": true, "b": "long"}',
        '{"a": 1, "c": true,}',
        '{"z": 1, "a": 1, "c": true,}',
        '{, "a": 1, "c": true}',
        '{"a": 1 "c": true}',
        '{"\\u0061": "x", "a": 1, "c": true}',
        '{"c": true, "a": 1} ',
    ],
)
def test_what_no_order_has(backend: LLGuidanceBackend, text: str) -> None:
    assert not takes(backend, Guide.json_schema(FIVE, open_objects=True), text)


@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rest", [True, False, {"type": "null"}])
def test_names_with_a_pattern_stand_anywhere(backend: LLGuidanceBackend, rest: Any, count: int) -> None:
    schema = {**PATTERNS, "additionalProperties": rest}
    guide, judge, rng = (
        Guide.json_schema(schema, open_objects=True),
        Draft202012Validator(schema),
        random.Random(3),
    )
    assert adapter.translated(guide)[0] == "lark"
    verdicts = set()
    for _ in range(count):
        value = {"a": 1, "b": "x", "c": True, "e": [], "x": 1, "xy": "text"} | rng.choice(
            [{}, {"z": None}, {"z": 1}, {"x": True}, {"b": 1}]
        )
        value = shuffled(rng, value)
        verdicts.add(judge.is_valid(value))
        text = json.dumps(value, ensure_ascii=False)
        assert takes(backend, guide, text) is judge.is_valid(value), text
    assert verdicts == {True, False}


def test_one_property_at_least(backend: LLGuidanceBackend) -> None:
    properties = {name: {"type": "integer"} for name in VALUES}
    schema = {"type": "object", "properties": properties, "additionalProperties": False, "minProperties": 1}
    guide = Guide.json_schema(schema, open_objects=True)
    assert adapter.translated(guide)[0] == "lark"
    assert takes(backend, guide, '{"d": 1, "a": 2}') and not takes(backend, guide, "{}")


def test_no_comma_where_nothing_may_follow(backend: LLGuidanceBackend) -> None:
    whole = '{"d": 1, "f": 2, "a": 3, "c": 4, "b": 5, "e": 6'
    guide = Guide.json_schema(CLOSED, open_objects=True, max_whitespace=8)
    matcher = backend.compile(guide).matcher()
    assert all(matcher.accept(token) for token in ids(whole + " "))
    row = new_row()
    matcher.fill(row)
    assert b"}" in (found := [small_vocabulary().tokens[token] for token in allowed(row)])
    assert not any(text.startswith(b",") for text in found)


def test_the_same_verdict_as_the_schema_in_every_order(backend: LLGuidanceBackend) -> None:
    guide = Guide.json_schema(TREE, open_objects=True)
    assert adapter.translated(guide)[0] == "lark"
    rng, judge, verdicts = random.Random(0), Draft202012Validator(TREE), []
    compiled = backend.compile(guide)
    assert not compiled.notes
    for _ in range(400):
        value = shuffled(rng, broken(rng, NESTED) if rng.random() < 0.7 else NESTED)
        tokens = [*ids(json.dumps(value, ensure_ascii=False)), END]
        verdicts.append(judge.is_valid(value))
        assert (compiled.matcher().validate(tokens) == len(tokens)) is verdicts[-1], value
    assert 100 < sum(verdicts) < 300


@pytest.mark.parametrize("schema", [FIVE, CLOSED, PATTERNS, TREE], ids=["five", "closed", "patterns", "tree"])
def test_masks_lead_to_valid_answers(backend: LLGuidanceBackend, schema: Any) -> None:
    compiled = backend.compile(Guide.json_schema(schema, open_objects=True))
    known = schema.get("properties", NODE["properties"])
    rng, judge, num_ended = random.Random(1), Draft202012Validator(schema), 0
    for _ in range(60):
        matcher, taken = compiled.matcher(), []
        for _ in range(300):
            row = new_row()
            matcher.fill(row)
            found = allowed(row)
            assert found, small_vocabulary().decode(taken)
            fit = [part for part in PARTS if matcher.validate(part) == len(part)]
            part = [END] if END in found else rng.choice(fit) if fit else [rng.choice(found)]
            assert all(matcher.accept(token) for token in part)
            if part == [END]:
                text = small_vocabulary().decode(taken).decode(errors="replace")
                names = [name for name, _ in json.loads(text, object_pairs_hook=list) if name in known]
                assert len(set(names)) == len(names), text
                value = json.loads(text)
                assert judge.is_valid(value), value
                num_ended += 1
                break
            taken += part
    assert num_ended >= 10


def test_many_others_cost_no_more_than_few(backend: LLGuidanceBackend) -> None:
    """A rule for each of them would meet a limit of the parser."""
    text = json.dumps({"a": 1, **{f"n{i}": i for i in range(4000)}, "c": True})
    assert takes(backend, Guide.json_schema(FIVE, open_objects=True), text)


@pytest.mark.parametrize(
    "options", [{}, {"max_whitespace": 8}, {"separators": (",", ":")}, {"separators": (", ", ": ")}]
)
def test_whitespace_is_as_in_other_schemas(backend: LLGuidanceBackend, options: dict[str, Any]) -> None:
    ordered = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    texts = ['{"a":1,"z":2}', '{"a": 1, "z": 2}', '{ "a" : 1 , "z" : 2 }', f'{{"a":{" " * 9}1}}', ' {"a":1}']
    guides = [
        Guide.json_schema(schema, open_objects=True, **options)
        for schema in (ordered, {**FIVE, "required": ["a"]})
    ]
    assert [adapter.translated(guide)[0] for guide in guides] == ["json_schema", "lark"]
    for text in texts:
        assert takes(backend, guides[0], text) == takes(backend, guides[1], text), text


CHAIN = {
    "$ref": "#/$defs/n0",
    "$defs": {
        f"n{i}": {
            "type": "object",
            "properties": {**FIVE["properties"], "next": {"$ref": f"#/$defs/n{i + 1}"}},
        }
        for i in range(300)
    }
    | {"n300": {"type": "null"}},
}
SEVERAL = {**FIVE, "patternProperties": {"^x": {"type": "integer"}, "^y": {"type": "null"}}}
MANY = {
    "type": "object",
    "properties": {f"n{i}": {"type": "integer"} for i in range(65)},
    "required": ["n64"],
}
NOTHING = {
    **FIVE,
    "properties": {**FIVE["properties"], "e": {"type": "string", "pattern": "^a$", "minLength": 2}},
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (SEVERAL, {"a": 1, "c": True}),
        (CHAIN, {"next": {"next": {}}}),
        (MANY, {"n64": 1}),
        (NOTHING, {"a": 1, "c": True}),
    ],
    ids=["several patterns", "chain", "many", "nothing"],
)
def test_what_can_not_be_said_in_every_order_keeps_those_that_are_written_out(
    backend: LLGuidanceBackend, schema: Any, value: Any
) -> None:
    guide = Guide.json_schema(schema, open_objects=True)
    assert takes(backend, guide, json.dumps(value))
    first = next(islice(schema.get("properties", {"a": 1}), 1))
    assert not takes(backend, guide, json.dumps({**value, first: []}))
