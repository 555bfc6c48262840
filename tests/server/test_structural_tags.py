"""Structural tags of both forms: whatever they do not have is refused, where XGrammar would ignore it."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from support.server.asking import MESSAGES, SCHEMA, ask
from support.server.running import Running
from weft.server.protocol.structural_tags import FORMATS, STRUCTURE

OLDER: dict[str, Any] = {
    "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}],
    "triggers": ["<a>"],
}
TAG: dict[str, Any] = {
    "type": "structural_tag",
    "format": {"type": "tag", "begin": "<a>", "content": {"type": "any_text"}, "end": "</a>"},
}


def tag(**more: Any) -> dict[str, Any]:
    """A structural tag of vLLM's older form with one more member in its structure."""
    return {**OLDER, "structures": [{"begin": "<a>", "end": "</a>", **more}]}


def triggered(**more: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"type": "sequence", "elements": [{"type": "any_text", **more}]}
    tags = [{"begin": {"type": "token", "token": 1}, "content": content, "end": ["</a>"]}]
    return {"type": "token_triggered_tags", "trigger_tokens": [1], "tags": tags}


MISSPELT: dict[str, tuple[dict[str, Any], str]] = {
    "of a structure": (tag(schem=SCHEMA), "structures.0 has 'schem'"),
    "of a structural tag": ({**OLDER, "trigger": ["<a>"]}, "has 'trigger'"),
    "of both forms": ({**TAG, **OLDER}, "format and structures"),
    "of neither form": ({"type": "structural_tag"}, "must have format"),
    "of half a form": ({"structures": []}, "must have format"),
    "a structure without an end": ({**OLDER, "structures": [{"begin": "<a>"}]}, "structures.0.end"),
    "a structure that is none": ({**OLDER, "structures": [1]}, "structures.0 must be an object"),
    "a schema that is no JSON": (tag(schema="{"), "structures.0.schema"),
    "of a format": ({"format": {**triggered(), "at_leastone": True}}, "format has 'at_leastone'"),
    "of a format within": ({"format": triggered(exclude=[])}, "tags.0.content.elements.0 has 'exclude'"),
    "of a tag that does not say so": (
        {"format": {"type": "triggered_tags", "triggers": [], "tags": [{"start": "<a>"}]}},
        "tags.0 has 'start'",
    ),
    "of a token": (
        {"format": {"type": "tag", "begin": {"tokn": 1}, "content": {"type": "any_text"}, "end": ""}},
        "begin has 'tokn'",
    ),
    "of a rule": (
        {"format": {"type": "dispatch", "rules": [["<a>", {"type": "any_text", "exclude": []}]]}},
        "rules.0 has 'exclude'",
    ),
    "another type": ({"type": "triggered_tags", "triggers": [], "tags": []}, "must be 'structural_tag'"),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_what_a_structural_tag_does_not_have_is_refused(server: Running, name: str) -> None:
    given, said = MISSPELT[name]
    fields: dict[str, Any] = {
        "structured_outputs": {"structural_tag": json.dumps(given)},
        "guide": {"structural_tag": given},
    }
    for field, value in fields.items():
        status, answer = ask(f"{server.url}/v1/chat/completions", {"messages": MESSAGES, field: value})
        told = answer["error"]
        assert (status, told["param"]) == (400, field) and said in told["message"], answer


def test_a_response_format_is_read_likewise(server: Running) -> None:
    for name in ("of a structure", "of a format within", "of both forms", "of half a form"):
        given, said = MISSPELT[name]
        form = {"type": "structural_tag", **given}
        asked = {"messages": MESSAGES, "response_format": form}
        status, answer = ask(f"{server.url}/v1/chat/completions", asked)
        told = answer["error"]
        assert (status, told["param"]) == (400, "response_format") and said in told["message"], answer


def test_members_of_structural_tags_are_those_that_xgrammar_has() -> None:
    from xgrammar import structural_tag

    union, _ = get_args(structural_tag.Format)
    theirs = {kind.model_fields["type"].default: {*kind.model_fields} - {"type"} for kind in get_args(union)}
    ours = {kind: {*members} for kind, members in FORMATS.items()}
    ours["json_schema"].remove("strict")  # weft's own
    assert ours == theirs
    older = {field.alias or name for name, field in structural_tag.StructuralTagItem.model_fields.items()}
    assert older == {*STRUCTURE}
