"""What each part of a schema keeps out of strict answers, whichever library compiled it: read back by `json.loads` and
`jsonschema`, from texts that are tried and from texts that the masks lead to.
"""

from __future__ import annotations

import functools
import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from support.grammar.grammars import END, allowed, new_row, small_vocabulary
from weft.errors import GuideError
from weft.grammar import CompiledGuide, Guide
from weft.grammar.auto import AutoBackend

LIBRARIES = ["xgrammar", "llguidance"]
NULL = {"type": "null"}
NOTHING = {"allOf": [{"type": "boolean"}, {"type": "object"}]}


@functools.cache
def backend() -> AutoBackend:
    return AutoBackend(small_vocabulary())


def takes(compiled: CompiledGuide, text: str) -> bool:
    """Whether each of its bytes may come next, by mask and by matcher, and then the end."""
    matcher = compiled.matcher()
    for token in (*(3 + byte for byte in text.encode()), END):
        row = new_row()
        is_allowed = not matcher.fill(row) or token in allowed(row)
        assert matcher.accept(token) == is_allowed
        if not is_allowed:
            return False
    return True


def sampled(compiled: CompiledGuide, seed: int, likely: frozenset[int]) -> str | None:
    """A text that the masks lead to; None where it did not end."""
    rng, matcher = random.Random(seed), compiled.matcher()
    tokens: list[int] = []
    for _ in range(200):
        row = new_row()
        choices = allowed(row) if matcher.fill(row) else list(range(3, 259))
        if END in choices and (len(choices) == 1 or rng.random() < 0.3):
            return small_vocabulary().decode(tokens).decode()
        ours = [token for token in choices if token - 3 in likely] if rng.random() < 0.9 else []
        tokens.append(rng.choice(ours or [token for token in choices if token != END]))
        assert matcher.accept(tokens[-1])
    return None


def is_valid(schema: Any, text: str) -> bool:
    checker = Draft202012Validator.FORMAT_CHECKER
    return bool(Draft202012Validator(schema, format_checker=checker).is_valid(json.loads(text)))


def hold(schema: Any, good: list[str], bad: list[str], **options: Any) -> int:
    """How many libraries compiled it. Each takes what is good and refuses what is bad; whatever it ends is valid."""
    count = 0
    for library in LIBRARIES:
        try:
            compiled = backend().libraries[library].compile(Guide.json_schema(schema, **options))
        except GuideError:
            continue
        count += 1
        assert compiled.notes == ()
        for text in good:
            assert is_valid(schema, text), text
            assert takes(compiled, text), (library, text)
        for text in bad:
            assert not takes(compiled, text), (library, text)
        for seed in range(12):
            found = sampled(compiled, seed, frozenset("".join([*good, *bad]).encode()))
            assert found is None or is_valid(schema, found), (library, found)
    return count


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
