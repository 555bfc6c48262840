"""Rewritten JSON schemas accept what the originals accept: each rule, and all together, held against `jsonschema`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator

from weft.grammar.schema.rewrite import rewrite

VALIDATORS = {4: Draft4Validator, 7: Draft7Validator, 2020: Draft202012Validator}
NAMES = ("a", "b", "ab")
PATTERNS = ("^a", "b$", "^[ab]{1,2}$", "a+b", "^$", "x")
SCALARS: tuple[Any, ...] = (None, True, False, 0, 1, 2, 3, -1, 6, 0.5, 1.5, "", "a", "b", "ab", "abx")

values = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from((*NAMES, "x")), inner, max_size=3)
    ),
    max_leaves=6,
)
counts = st.integers(0, 3)
types = st.sampled_from(("null", "boolean", "number", "integer", "string", "array", "object"))
names = st.lists(st.sampled_from(NAMES), max_size=2, unique=True)


def some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these keywords, in any order."""
    parts = st.permutations(list(keywords)).flatmap(
        lambda keys: st.integers(1, len(keys)).map(lambda size: keys[:size])
    )
    return parts.flatmap(lambda keys: st.fixed_dictionaries({key: keywords[key] for key in keys}))


def shapes(inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """Schemas by the rule that they are for, of `inner` ones."""
    several = st.lists(inner, min_size=1, max_size=3)
    by_name = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3)
    numbers = st.sampled_from((-1, 0, 1, 1.5, 3, 6))
    return {
        "types": some(type=types | st.lists(types, min_size=1, max_size=3, unique=True)),
        "values": some(enum=st.lists(values, min_size=1, max_size=4), const=values),
        "numbers": some(
            type=st.sampled_from(("number", "integer")),
            minimum=numbers,
            maximum=numbers,
            exclusiveMinimum=numbers,
            exclusiveMaximum=numbers,
            multipleOf=st.sampled_from((1, 2, 3, 0.5, 1.5)),
        ),
        "strings": some(minLength=counts, maxLength=counts, pattern=st.sampled_from(PATTERNS)),
        "arrays": some(
            prefixItems=several,
            items=inner,
            minItems=counts,
            maxItems=counts,
            uniqueItems=st.booleans(),
            contains=inner,
            minContains=counts,
            maxContains=counts,
        ),
        "objects": some(
            properties=by_name,
            patternProperties=st.dictionaries(st.sampled_from(PATTERNS), inner, min_size=1, max_size=2),
            additionalProperties=inner,
            required=names,
            minProperties=counts,
            maxProperties=counts,
            propertyNames=inner,
        ),
        "dependent": some(
            properties=by_name,
            dependentRequired=st.dictionaries(st.sampled_from(NAMES), names, min_size=1, max_size=2),
            dependentSchemas=by_name,
        ),
        "together": some(allOf=several, anyOf=several, properties=by_name, required=names, type=types),
        "one": some(oneOf=several, type=types, required=names, properties=by_name),
        "denied": st.fixed_dictionaries({"not": inner}, optional={"type": types, "allOf": several}),
        "condition": some(**{"if": inner, "then": inner, "else": inner, "properties": by_name}),
        "references": some(
            **{"$ref": st.sampled_from(("#/$defs/a", "#/$defs/b", "#/$defs/b/properties/a"))},
            required=names,
            properties=by_name,
            allOf=several,
        ),
        "unevaluated": some(
            properties=by_name, unevaluatedProperties=inner, items=inner, unevaluatedItems=inner
        ),
    }


def of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(*shapes(inner).values())


simple = (
    st.booleans()
    | some(type=types)
    | shapes(st.just(True))["numbers"]
    | some(enum=st.lists(values, min_size=1))
)
schemas = st.deferred(lambda: simple | of(simple) | of(of(simple)))


def with_definitions(schema: Any, first: Any, second: Any) -> Any:
    """The schema with two definitions; the second one leads back to both."""
    if not isinstance(schema, dict):
        return schema
    second = {"type": ["object", "integer"], "properties": {"a": {"$ref": "#/$defs/b"}, "b": second}}
    return {**schema, "$defs": {"a": first, "b": second}}


def check(schema: Any, instances: list[Any], draft: int = 2020) -> None:
    original = VALIDATORS[draft](schema)
    rewritten = rewrite(json.loads(json.dumps(schema)), open_objects=True)
    Draft202012Validator.check_schema(rewritten.schema)
    found = Draft202012Validator(rewritten.schema)
    for instance in instances:
        expected = original.is_valid(instance)
        assert found.is_valid(instance) is expected, (instance, expected, rewritten.schema)
    closed = Draft202012Validator(rewrite(json.loads(json.dumps(schema))).schema)
    for instance in instances:
        assert original.is_valid(instance) or not closed.is_valid(instance), (
            instance,
            "is only valid closed",
        )


def hold(rule: str, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def held(data: st.DataObject) -> None:
        schema = data.draw(shapes(schemas)[rule])
        schema = with_definitions(schema, data.draw(simple), data.draw(simple))
        check(schema, data.draw(st.lists(values, min_size=8, max_size=12)))

    held()


@pytest.mark.parametrize("rule", shapes(st.just(True)))
def test_rule_keeps_what_a_schema_accepts(rule: str) -> None:
    hold(rule, 8)


@pytest.mark.slow
@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.full)])
@pytest.mark.parametrize("rule", shapes(st.just(True)))
def test_rule_keeps_what_a_schema_accepts_at_length(rule: str, count: int) -> None:
    hold(rule, count)


CASES: list[tuple[Any, list[Any]]] = [
    # What shows that a choice is none must not be that choice itself.
    ({"oneOf": [True, {"enum": [None]}], "type": "null"}, [None]),
    ({"allOf": [{"enum": [1, 2]}, {"not": {"enum": [2, 3]}}]}, [1, 2, 3]),
    # Properties of a closed schema, and patterns of another.
    (
        {
            "allOf": [
                {"properties": {"xa": {}}, "additionalProperties": False},
                {"patternProperties": {"^x": {}}},
            ]
        },
        [{"xa": 1}, {"xb": 1}],
    ),
    # Arrays of which each excludes the other's items are alike where they are empty.
    (
        {"oneOf": [{"type": "array", "items": {"type": t}} for t in ("string", "number")]},
        [[], ["a"], [1], ["a", 1]],
    ),
    ({"type": "string", "not": {"pattern": "^[ab]+$"}}, ["", "a", "ab", "abx", "x"]),
    ({"not": {"propertyNames": {"not": {"enum": ["a", "b"]}}}}, [{}, {"a": 1}, {"x": 1}, 3]),
    ({"not": {"patternProperties": {"^(a|b)$": False}}}, [{}, {"a": 1}, {"x": 1}, {"ab": 1}]),
    (
        {
            "required": ["a"],
            "oneOf": [
                {"type": "object", "additionalProperties": {"type": "null"}},
                {"type": "object", "properties": {"a": {"type": "string"}}},
            ],
        },
        [{"a": None}, {"a": "b"}, {"a": 1}, {"a": "b", "b": None}],
    ),
]


@pytest.mark.parametrize(("schema", "instances"), CASES)
def test_cases_that_went_wrong(schema: Any, instances: list[Any]) -> None:
    check(schema, instances)


OBJECT = {"type": "object", "properties": {"a": {"type": "null"}}}


@pytest.mark.parametrize(
    ("schema", "instance", "is_closed"),
    [
        (OBJECT, {"b": 1}, True),
        ({**OBJECT, "additionalProperties": True}, {"b": 1}, False),
        ({"allOf": [OBJECT, {"properties": {"b": {}}}]}, {"b": 1}, False),
        ({"allOf": [OBJECT, {"properties": {"b": {}}}]}, {"c": 1}, True),
        ({"type": "object"}, {"b": 1}, False),
        ({"type": "object", "not": {"required": ["a"]}}, {"b": 1}, False),
        ({**OBJECT, "required": ["b"]}, {"b": 1}, False),
        ({"type": "object", "patternProperties": {"^a": {}}}, {"b": 1}, True),
    ],
)
def test_objects_that_name_properties_are_closed(schema: Any, instance: Any, is_closed: bool) -> None:
    assert Draft202012Validator(rewrite(schema, open_objects=True).schema).is_valid(instance)
    assert Draft202012Validator(rewrite(schema).schema).is_valid(instance) is not is_closed


def test_orders_are_all_written_out_or_none() -> None:
    """Where an object has too many, a library is told of them otherwise, and others' orders would be beside those."""

    small = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}

    def schema(size: int) -> dict[str, Any]:
        properties: dict[str, Any] = {f"p{i}": {"type": "integer"} for i in range(size)}
        return {"type": "object", "properties": {"small": small, **properties}, "required": ["p2"]}

    few = rewrite(schema(3), open_objects=True, all_orders=True)
    assert not few.lacks_orders and len(few.schema["anyOf"]) == 24
    many = rewrite(schema(5), open_objects=True, all_orders=True)
    assert many.lacks_orders and many.schema == schema(5)
    some = rewrite(schema(5), open_objects=True)
    assert [next(iter(one["properties"])) for one in some.schema["anyOf"]] == ["small", "p2"]
    assert not rewrite(schema(5), all_orders=True).lacks_orders, "closed objects have one order"
