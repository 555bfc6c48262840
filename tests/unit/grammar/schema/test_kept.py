"""What names and members a strict guide keeps out, whichever library compiled it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.grammar.kept import LIBRARIES, NOTHING, NULL, backend, hold, takes
from weft.errors import GuideError
from weft.grammar import Guide

NAMES: list[tuple[Any, list[str], list[str]]] = [
    ({"maxLength": 3}, ['{"awO": null}', "{}"], ["{null: null}", "{1: null}", '{"awOo": null}']),
    ({"minLength": 2}, ['{"aw": null}'], ["{null: null}", '{"a": null}', "{}}"]),
    ({"pattern": "^a+$"}, ['{"aa": null}'], ["{true: null}", '{"b": null}']),
    ({"format": "uuid"}, ["{}"], ["{[]: null}", '{"b": null}']),
    ({"anyOf": [{"maxLength": 1}, {"pattern": "^abc$"}]}, ['{"abc": null}', '{"x": null}'], ["{null: null}"]),
    ({"allOf": [{"minLength": 1}, {"maxLength": 2}]}, ['{"ab": null}'], ["{null: null}", '{"": null}']),
    ({"$ref": "#/$defs/name"}, ['{"ab": null}'], ["{null: null}", '{"": null}']),
    ({"not": {"maxLength": 1}}, ['{"ab": null}'], ["{null: null}", '{"a": null}']),
    ({"enum": [1, "a", None]}, ['{"a": null}'], ["{null: null}", "{1: null}"]),
    ({"type": ["string", "null"], "maxLength": 2}, ['{"a": null}'], ["{null: null}"]),
    ({"type": "integer"}, ["{}"], ["{1: null}", '{"a": null}']),
    ({"not": {"type": "string"}}, ["{}"], ["{1: null}", '{"a": null}']),
    (False, ["{}"], ["{null: null}", '{"a": null}']),
    (True, ['{"a": null}'], ["{null: null}"]),
]


@pytest.mark.parametrize(("names", "good", "bad"), NAMES, ids=lambda value: str(value)[:50])
@pytest.mark.parametrize("open_objects", [False, True])
def test_names_are_strings(names: Any, good: list[str], bad: list[str], open_objects: bool) -> None:
    schema = {
        "type": "object",
        "additionalProperties": NULL,
        "propertyNames": names,
        "$defs": {"name": {"minLength": 2}},
    }
    assert hold(schema, good, bad, open_objects=open_objects) >= 1


@pytest.mark.parametrize("names", [{"maxLength": 3}, {"anyOf": [{"maxLength": 3}, {"pattern": "^abcd$"}]}])
def test_names_are_strings_where_a_schema_stays_as_it_was(names: Any) -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-03/schema#",  # which is not rewritten
        "type": "object",
        "additionalProperties": NULL,
        "propertyNames": names,
    }
    compiled = backend().libraries["xgrammar"].compile(Guide.json_schema(schema, strict=False))
    is_noted = any("does not say that names are strings" in note for note in compiled.notes)
    assert is_noted or not takes(compiled, "{null: null}")
    assert takes(compiled, '{"a": null}')
    assert is_noted == ("anyOf" in names)


VOID: list[dict[str, Any]] = [
    {"additionalProperties": NOTHING, "propertyNames": {"enum": ["p", "q"]}},
    {"additionalProperties": False, "propertyNames": {"pattern": "^p$"}},
    {
        "additionalProperties": {"type": "string", "minLength": 2, "not": {"minLength": 1}},
        "propertyNames": {"maxLength": 3},
    },
    {"additionalProperties": NOTHING},
    {"additionalProperties": NOTHING, "patternProperties": {"^p$": NOTHING}},
    {"additionalProperties": False, "patternProperties": {"^p$": False}, "propertyNames": {"maxLength": 3}},
    {"propertyNames": NOTHING, "patternProperties": {"^p$": NULL}},
    {"additionalProperties": {"$ref": "#/$defs/void"}, "propertyNames": {"enum": ["p"]}},
]


@pytest.mark.parametrize("parts", VOID, ids=str)
@pytest.mark.parametrize("open_objects", [False, True])
def test_members_that_nothing_satisfies_do_not_come(parts: dict[str, Any], open_objects: bool) -> None:
    void = {"type": "object", "properties": {"x": {"$ref": "#/$defs/void"}}, "required": ["x"]}
    schema = {"type": "object", **parts, "$defs": {"void": void}}
    bad = ['{"p": 1}', '{"p": {}}', '{"p": "aa"}', '{"p": null}']
    assert hold(schema, ["{}"], bad, open_objects=open_objects) == 2


FORBIDDEN: list[tuple[dict[str, Any], int]] = [
    ({"^a|b$": NULL, "^a": False}, 0),  # LLGuidance takes no two patterns for one name
    ({"^a|b$": NULL, "^a": NOTHING}, 0),
    ({"^b": NULL, "^a": False}, 1),
]


@pytest.mark.parametrize(("patterns", "num_libraries"), FORBIDDEN, ids=str)
@pytest.mark.parametrize("open_objects", [False, True])
def test_a_forbidden_pattern_counts_beside_another_for_the_same_names(
    patterns: dict[str, Any], num_libraries: int, open_objects: bool
) -> None:
    schema = {"type": "object", "patternProperties": patterns, "additionalProperties": False}
    bad = ['{"ab": null}', '{"a": null}']
    assert hold(schema, ['{"b": null}'], bad, open_objects=open_objects) == num_libraries


LOOKING = ["^(?!a)[ab]{1,3}$", "^(?=a)[ab]{1,3}$", "^(?<!a)b$", "^(?<=a)b$", "[ab](?!c)"]


@pytest.mark.parametrize("pattern", LOOKING)
@pytest.mark.parametrize("library", LIBRARIES)
def test_look_around_is_refused_wherever_it_stands(library: str, pattern: str) -> None:
    """It would be left out in silence."""
    within = {"type": "object", "patternProperties": {pattern: NULL}, "additionalProperties": False}
    for schema in (
        within,
        {"type": "object", "properties": {"x": within}, "required": ["x"]},
        {"type": "object", "propertyNames": {"pattern": pattern}},
        {"type": "string", "pattern": pattern},
        {"type": "array", "items": {"anyOf": [NULL, {"type": "string", "pattern": pattern}]}},
        {"type": "string", "not": {"pattern": pattern}},
    ):
        with pytest.raises(GuideError):
            backend().libraries[library].compile(Guide.json_schema(schema))
    with pytest.raises(GuideError):
        backend().libraries[library].compile(Guide.regex(pattern))
    loose = backend().compile(Guide.json_schema(within, strict=False))
    assert any("look-around" in note for note in loose.notes)


@pytest.mark.parametrize("pattern", [*LOOKING, "a^b", "a$b"])
def test_regexes_within_grammars_and_tags_are_whole(pattern: str) -> None:
    regex = {"type": "regex", "pattern": pattern}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": regex, "end": ">"}}
    for guide in (Guide.ebnf(f'root ::= Regex("{pattern}")'), Guide.structural_tag(tag)):
        with pytest.raises(GuideError):
            backend().libraries["xgrammar"].compile(guide)


ODD_NAMES = ["é", "😀", 'a"', "b\\", "c\n", "d/e", "é\u2028"]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
@pytest.mark.parametrize("others", [True, {"type": "integer"}])
def test_other_properties_have_other_names_in_any_spelling(name: str, others: Any) -> None:
    schema = {"type": "object", "properties": {name: NULL, "x": NULL}, "additionalProperties": others}
    escaped = "".join(f"\\u{ord(char):04x}" if ord(char) < 0x10000 else char for char in name)
    short = json.dumps(name, ensure_ascii=False).replace("/", "\\/")
    key = json.dumps(name, ensure_ascii=False)
    good = [f"{{{key}: null}}", '{"y": 1}', f'{{{key}: null, {key[:-1]}y": 1}}', "{}"]
    bad = [f"{{{key}: 1}}", f'{{"{escaped}": 1}}', f"{{{short}: 1}}", '{"x": 1}', f'{{"y": 1, {key}: 1}}']
    assert hold(schema, good, bad) == 2
