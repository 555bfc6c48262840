"""Guides by every name that there is for them, and none that is ignored."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import openai
import pytest

from support.server.asking import ANSWER, MESSAGES, SCHEMA, ask
from support.server.running import Running
from weft import Guide
from weft.server.errors import ApiError
from weft.server.protocol.generation import GuideFields, OwnGuide
from weft.server.reading.guides import guide_of

TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<a>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</a>",
    },
}
OLD_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}],
    "triggers": ["<a>"],
}
OLDER = {name: value for name, value in OLD_TAG.items() if name != "type"}
EBNF = 'root ::= "yes" | "no"'
LARK = 'start: "yes" | "no"'
PERSON, YES_NO, DIGITS = "person", "(yes|no)", "[0-9]{3}"

GUIDES: dict[str, tuple[dict[str, Any], str]] = {
    "json_schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
            }
        },
        PERSON,
    ),
    "json_object": ({"response_format": {"type": "json_object"}}, "object"),
    "structural_tag": ({"response_format": TAG}, "<a>.*</a>"),
    "structured json": ({"structured_outputs": {"json": SCHEMA}}, PERSON),
    "structured json text": ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, PERSON),
    "structured compact": ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, PERSON),
    "structured regex": ({"structured_outputs": {"regex": DIGITS}}, DIGITS),
    "structured choice": ({"structured_outputs": {"choice": ["yes", "no"]}}, YES_NO),
    "structured ebnf": ({"structured_outputs": {"grammar": EBNF}}, YES_NO),
    "structured lark": ({"structured_outputs": {"grammar": LARK}}, YES_NO),
    "structured object": ({"structured_outputs": {"json_object": True}}, "object"),
    "structured tag": ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, "<a>.*</a>"),
    "guided_json": ({"guided_json": SCHEMA}, PERSON),
    "guided_regex": ({"guided_regex": DIGITS}, DIGITS),
    "guided_choice": ({"guided_choice": ["yes", "no"]}, YES_NO),
    "guided_grammar": ({"guided_grammar": EBNF}, YES_NO),
    "own schema": ({"guide": {"json_schema": SCHEMA, "max_whitespace": 2}}, PERSON),
    "own regex": ({"guide": {"regex": DIGITS}}, DIGITS),
    "own ebnf": ({"guide": {"ebnf": EBNF}}, YES_NO),
    "own lark": ({"guide": {"lark": LARK}}, YES_NO),
    "own choice": ({"guide": {"choice": ["yes", "no"]}}, YES_NO),
    "structured older tag": ({"structured_outputs": {"structural_tag": OLDER}}, PERSON),
    "structured older tag text": ({"structured_outputs": {"structural_tag": json.dumps(OLD_TAG)}}, PERSON),
    "own tag": ({"guide": {"structural_tag": TAG}}, "<a>.*</a>"),
    "own older tag": ({"guide": {"structural_tag": OLDER}}, PERSON),
    "own handle": ({"guide": {"handle": "digits"}}, DIGITS),
    "own after": ({"guide": {"regex": DIGITS, "after": "=", "max_free_tokens": 3}}, "[^=]*=" + DIGITS),
    "text with guide": ({"response_format": {"type": "text"}, "guide": {"regex": DIGITS}}, DIGITS),
}


def obeys(text: str, form: str) -> bool:
    if form == PERSON:
        return set(json.loads(text)) == {"name", "age"}
    if form == "object":
        return isinstance(json.loads(text), dict)
    return re.fullmatch(form, text, re.DOTALL) is not None


@pytest.mark.parametrize("name", GUIDES)
@pytest.mark.parametrize("stream", [False, True])
def test_answers_obey(client: Any, name: str, stream: bool) -> None:
    extra, form = GUIDES[name]
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0, "max_tokens": 100}
    answer = client.chat.completions.create(**asked, stream=stream, extra_body=extra)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
    else:
        text = answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop" and answer.weft["guided_valid"] == [True]
    assert obeys(text, form), text


GRAMMARS = {
    "lark with the sign in a text": ('start: "a ::= b"', "a ::= b"),
    "lark with the sign in a comment": ('// root ::= "a"\nstart: "yes" // root ::= "a"\n', "yes"),
    "ebnf whose first line is a comment": ('# start: "a"\n  root ::= "yes"', "yes"),
    "ebnf with a name on a line of its own": ('root\n  ::= "start: yes"', "start: yes"),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_grammar_is_what_its_rules_look_like(client: Any, name: str) -> None:
    grammar, text = GRAMMARS[name]
    answer = client.completions.create(model="tiny", prompt="x", extra_body={"guided_grammar": grammar})
    assert answer.choices[0].text == text


def test_the_older_structural_tag(client: Any) -> None:
    """Free text with tags in it."""
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, max_tokens=40, extra_body={"response_format": OLD_TAG}
    )
    assert json.loads(answer.choices[0].message.content) == ANSWER


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown": ({"guided_jsn": {}}, "guided_jsn", "did you mean 'guided_json'"),
    "unknown within": ({"guide": {"regx": "a"}}, "guide.regx", "unknown field"),
    "unknown type": ({"response_format": {"type": "yaml"}}, "response_format", "'yaml'"),
    "two": ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "one guide"),
    "two within": ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs", "one of them"),
    "none within": ({"guide": {}}, "guide", "says nothing"),
    "no handle": ({"guide": {"handle": "nope"}}, "guide", "'nope'"),
    "whitespace": (
        {"structured_outputs": {"json": {}, "whitespace_pattern": " "}},
        "structured_outputs.whitespace_pattern",
        "guide.max_whitespace allows more",
    ),
    "backend": (
        {"guided_regex": "a", "guided_decoding_backend": "outlines"},
        "guided_decoding_backend",
        "library",
    ),
    "free text of nothing": ({"guide": {"regex": "a", "max_free_tokens": 3}}, "guide", "guide.after"),
    "blanks of a regex": (
        {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
        "structured_outputs",
        "beside regex",
    ),
    "blanks of a tag": (
        {"structured_outputs": {"structural_tag": TAG, "disable_any_whitespace": True}},
        "structured_outputs",
        "beside structural_tag",
    ),
    "extra of format beside a guide": (
        {"response_format": {"type": "text", "json_schema": {"schema": {}}}, "guided_regex": "a"},
        "response_format",
        "not for",
    ),
    "argument": ({"guide": {"regex": "a", "arg": 1}}, "guide", "guide.wasm"),
    "extra of format": (
        {"response_format": {"type": "text", "json_schema": {"schema": {}}}},
        "response_format",
        "not for",
    ),
}


def test_options_of_a_guide_reach_structural_tags(client: Any) -> None:
    unique = {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "maxItems": 2}
    form = {
        "type": "tag",
        "begin": "<a>",
        "content": {"type": "json_schema", "json_schema": unique},
        "end": "",
    }
    given = {"structural_tag": {"format": form}, "strict": False}
    answer = client.completions.create(
        model="tiny", prompt="x", temperature=0, max_tokens=60, extra_body={"guide": given}
    )
    assert answer.choices[0].text.startswith("<a>[") and "uniqueItems" in str(answer.weft["guide_notes"])


class Fields(GuideFields):
    """A body of nothing but guides."""


def read(**guide: Any) -> Guide | None:
    return guide_of(Fields.read({"guide": guide}), {}, lambda name, arg: Guide.regex("a"))


def test_a_guide_has_the_options_that_were_asked_for() -> None:
    for more in ({}, {"strict": False}, {"open_objects": True}):
        for kind, value in (("structural_tag", TAG), ("json_schema", SCHEMA)):
            guide = read(**{kind: value}, **more)
            assert guide is not None and guide.kind == kind
            assert (guide.strict, guide.open_objects) == ("strict" not in more, "open_objects" in more)


JSON_FIELDS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json_object": True}},
    {"guided_json": SCHEMA},
    {"guide": {"json_object": True}},
    {"guide": {"json_schema": SCHEMA, "any_order": True}},
    {"guide": {"json_schema": SCHEMA, "max_whitespace": "tidy"}},
]


@pytest.mark.parametrize("fields", JSON_FIELDS)
def test_json_is_tidy_by_default(fields: dict[str, Any]) -> None:
    guide = guide_of(Fields.read(fields), {}, lambda name, arg: Guide.regex("a"))
    assert guide is not None and guide.max_whitespace == "tidy"


def test_more_whitespace_by_option() -> None:
    for bound in (1, 8, None):
        guide = read(json_schema=SCHEMA, max_whitespace=bound)
        assert guide is not None and guide.max_whitespace == bound
    with pytest.raises(ApiError, match="must be 'tidy', a number from 1 on, or null, not 'neat'"):
        read(json_schema=SCHEMA, max_whitespace="neat")


IDLE: dict[str, Any] = {"strict": False, "any_order": True, "open_objects": True, "max_whitespace": None}
KINDS: dict[str, Any] = {
    "regex": "a",
    "ebnf": EBNF,
    "lark": LARK,
    "choice": ["a"],
    "wasm": "x",
    "handle": "x",
    "structural_tag": TAG,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", IDLE)
def test_options_that_change_nothing_are_refused(kind: str, option: str) -> None:
    if kind == "structural_tag" and option in ("strict", "open_objects"):
        return
    with pytest.raises(ApiError, match=f"guide.{option} is for .* beside {kind}") as caught:
        read(**{kind: KINDS[kind], option: IDLE[option]})
    assert caught.value.param == "guide"
    if kind != "handle":
        default = OwnGuide.model_fields[option].default
        assert read(**{kind: KINDS[kind], option: default}) is not None


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(server: Running, name: str) -> None:
    extra, param, said = REFUSED[name]
    status, answer = ask(f"{server.url}/v1/chat/completions", {"messages": MESSAGES, **extra})
    assert status in (400, 404) and said in answer["error"]["message"]
    assert answer["error"]["param"] == param


BAD = {
    "schema": {"guided_json": {"type": "objct"}},
    "impossible": {"guided_json": {"type": "integer", "minimum": 5, "maximum": 1}},
    "not enforced": {"guided_json": {"type": "array", "uniqueItems": True}},
    "regex": {"guided_regex": "[0-9"},
    "ebnf": {"guide": {"ebnf": "root ::= ("}},
    "lark": {"guide": {"lark": "start: ("}},
    "choice": {"guide": {"choice": []}},
    "tag": {"response_format": {"type": "structural_tag", "format": {"type": "nothing"}}},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", BAD)
def test_what_does_not_compile_is_a_400_also_of_a_stream(server: Running, name: str, stream: bool) -> None:
    asked = {"messages": MESSAGES, "stream": stream, "max_tokens": 4, **BAD[name]}
    status, answer = ask(f"{server.url}/v1/chat/completions", asked)
    assert status == 400 and answer["error"]["code"] == "guide_error", answer


def test_without_strict_it_is_told_what_was_left_out(client: Any) -> None:
    tags = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "tags": tags}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0}
    answer = client.chat.completions.create(**asked, response_format=form)
    assert json.loads(answer.choices[0].message.content) == ANSWER
    assert answer.weft["guide_notes"] and answer.weft["guided_valid"] == [True]
    form["json_schema"]["strict"] = True
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**asked, response_format=form)


def test_programs_are_uploaded_and_used(client: Any, server: Running) -> None:
    import wasmtime

    text = Path(__file__).parents[2].joinpath("examples", "wasm_digits.wat").read_text()
    module = bytes(wasmtime.wat2wasm(text))
    status, uploaded = ask(f"{server.url}/v1/controllers", module, method="POST")
    assert status == 200 and uploaded["wasm_size"] == len(module)
    number = uploaded["module_id"]
    tags = {"module_id": number, "tags": ["year", "digits-1"]}
    assert ask(f"{server.url}/v1/controllers/tags", tags)[0] == 200
    listed = ask(f"{server.url}/v1/controllers")[1]
    assert [tag["tag"] for tag in listed["tags"]] == ["year", "digits-1"]
    for name in ("year", number):
        answer = client.completions.create(
            model="tiny", prompt="The year: ", temperature=0, extra_body={"guide": {"wasm": name, "arg": "4"}}
        )
        assert re.fullmatch("[0-9]{4}", answer.choices[0].text)
        (program,) = answer.weft["programs"]
        assert program["log"] is not None and program["variables"] == {}
    assert ask(f"{server.url}/v1/controllers/year", method="DELETE")[0] == 200
    with pytest.raises(openai.NotFoundError, match="'year'"):
        client.completions.create(model="tiny", prompt="x", extra_body={"guide": {"wasm": "year"}})
    assert ask(f"{server.url}/v1/controllers", b"(module)", method="POST")[0] == 400
    assert (
        ask(f"{server.url}/v1/controllers", b"\0asm nonsense", method="POST")[0] == 200
    )  # it is compiled when it is used
    assert ask(f"{server.url}/v1/controllers/{number}", method="DELETE")[0] == 200


@pytest.mark.parametrize("guide", [{}, {"after": "{"}, {"strict": True}])
def test_answers_of_guides_that_are_not_strict_are_checked(
    server: Running, guide: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a trigger."""
    judged: list[Any] = []
    detokenizer = server.state.models["tiny"].detokenizer
    monkeypatch.setattr(detokenizer, "judge", lambda output, response: judged.append(output.text))
    body = {"messages": MESSAGES, "max_tokens": 4, "guide": {"json_schema": SCHEMA, "strict": False, **guide}}
    status, answer = ask(f"{server.url}/v1/chat/completions", body)
    assert status == 200, answer
    assert len(judged) == (guide != {"strict": True})
