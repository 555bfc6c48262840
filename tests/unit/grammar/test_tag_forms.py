"""Structural tags of the older form: structures and triggers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xgrammar as xgr

from support.grammar.grammars import small_vocabulary
from weft.errors import GuideError
from weft.grammar import CompileLimits, Guide, GuideCompiler
from weft.grammar.tag_forms import of_older, tag_of
from weft.grammar.xgrammar.translate import tokenizer_info
from weft.parsing import AnswerParser

NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
CALL = {
    "type": "object",
    "properties": {"ab": {"enum": ["x", "yy"]}},
    "required": ["ab"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": NUMBER, "end": "</f>"},
        {"begin": "<f=ab>", "schema": json.dumps(CALL), "end": "</f>"},
        {"begin": "[[", "schema": {"const": "true"}, "end": "]]"},
    ],
    "triggers": ["<f=", "[["],
}
TEXTS = [
    'free ab text, <f=a>12</f> and <f=ab>{"ab": "yy"}</f>, so [["true"]]',
    "<f=a>7</f><f=a>0</f>",
    "<f <f=ab>{",
    '] [ [["tr',
    "nothing at all",
]


def changed(**members: Any) -> dict[str, Any]:
    return {key: value for key, value in {**TAG, **members}.items() if value != "left out"}


def structure(**members: Any) -> dict[str, Any]:
    first: dict[str, Any] = {"begin": "<f=a>", "schema": NUMBER, "end": "</f>", **members}
    return changed(structures=[{k: v for k, v in first.items() if v != "left out"}], triggers=["<f="])


@pytest.mark.parametrize("text", TEXTS)
def test_masks_are_those_of_xgrammars_own_older_call(text: str) -> None:
    vocabulary = small_vocabulary()
    items = [xgr.StructuralTagItem.model_validate(one) for one in TAG["structures"]]
    own = xgr.GrammarCompiler(tokenizer_info(vocabulary)).compile_structural_tag(items, TAG["triggers"])
    theirs, row = xgr.GrammarMatcher(own), xgr.allocate_token_bitmask(1, vocabulary.vocab_size)
    matchers = []
    with GuideCompiler(vocabulary) as compiler:
        for guide in (Guide.structural_tag(TAG), Guide.unread("structural_tag", json.dumps(TAG))):
            matchers.append(compiler.compile(guide).matcher())
    bits = np.zeros_like(row.numpy()[0])
    for byte in text.encode():
        theirs.fill_next_token_bitmask(row)
        for ours in matchers:
            ours.fill(bits)
            assert np.array_equal(bits, row.numpy()[0])
            assert ours.accept(byte + 3)  # the small vocabulary's bytes begin at 3
        assert theirs.accept_token(byte + 3)


def test_it_is_todays_form_with_its_strictness() -> None:
    triggered = of_older(TAG)["format"]
    assert tag_of(json.dumps(TAG)) == {"type": "structural_tag", "format": triggered}
    assert triggered["triggers"] == TAG["triggers"]
    assert [tag["content"]["json_schema"] for tag in triggered["tags"]] == [NUMBER, CALL, {"const": "true"}]
    assert tag_of('{"format": {"type": "any_text"}}') == {"format": {"type": "any_text"}}
    late = structure(schema={"type": "array", "contains": {"type": "integer"}, "minContains": 2})
    with GuideCompiler(small_vocabulary()) as compiler:
        with pytest.raises(GuideError, match="contains"):
            compiler.compile(Guide.structural_tag(late))
        assert compiler.compile(Guide.structural_tag(late, strict=False)).notes


def test_answers_under_it_are_parsed() -> None:
    tag = changed(
        structures=[
            {"begin": '<call>{"name": "f", "arguments": ', "schema": {"type": "object"}, "end": "}</call>"}
        ],
        triggers=["<call>"],
    )
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    parser = AnswerParser.of_tools(tag, tools)
    answer = parser.read('so <call>{"name": "f", "arguments": {"a": 1}}</call>')
    assert [call.name for call in answer.calls] == ["f"]


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        (
            structure(begin="<g>"),
            "structures/0: the begin '<g>' has none of the triggers as its prefix: '<f='",
        ),
        (structure(begin=""), "the begin '' has none of the triggers"),
        (
            changed(triggers=["<f=", "<f", "[["]),
            "the begin '<f=a>' has two triggers as its prefix: '<f', '<f='",
        ),
        (changed(triggers=["<f=", "[[", "<g"]), "no structure begins with the trigger '<g'"),
        (changed(triggers="left out"), "triggers must be a list"),
        (changed(structures="left out"), "structures must be a list"),
        (changed(structures=[]), "structures must be a list with at least one entry"),
        (changed(triggers=[""]), "triggers has ''"),
        (changed(triggers=[3]), "triggers has 3"),
        (changed(structures=[3]), "at structures/0: it must be an object"),
        (changed(type="tag"), "its type is 'tag'"),
        (changed(format={"type": "any_text"}), "has format and structures"),
        (changed(stop=1), "it has 'stop', which is not known"),
        (structure(end="left out"), "at structures/0: end must be a text"),
        (structure(begin=3), "at structures/0: begin must be a text"),
        (structure(schema="left out"), "at structures/0: schema must be a JSON schema"),
        (structure(schema=[]), "at structures/0: schema must be a JSON schema"),
        (structure(schema="{"), "at structures/0: schema is not valid JSON"),
        (structure(schema="[" * 5000), "at structures/0: schema is not valid JSON"),
        (structure(strict=True), "structures/0 has 'strict', which is not known"),
    ],
)
def test_what_is_wrong_is_named(tag: dict[str, Any], message: str) -> None:
    with pytest.raises(GuideError, match=message.replace("[", r"\[")):
        Guide.structural_tag(tag)
    with (
        GuideCompiler(small_vocabulary()) as compiler,
        pytest.raises(GuideError, match=message.replace("[", r"\[")),
    ):
        compiler.compile(Guide.unread("structural_tag", json.dumps(tag)))


def test_a_schema_within_a_text_is_bounded_like_others() -> None:
    deep = '{"items":' * 70 + "{}" + "}" * 70
    chain = {
        "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(600)} | {"d600": {}},
        "$ref": "#/$defs/d0",
    }
    many = json.dumps({"enum": [f"t{i}" for i in range(20_000)]})
    with GuideCompiler(small_vocabulary(), limits=CompileLimits.untrusted()) as compiler:
        for schema, message in (
            (deep, "nests 71 deep"),
            (json.dumps(chain), "chain of"),
            (many, "20000 choices"),
        ):
            with pytest.raises(GuideError, match=message):
                compiler.compile(Guide.structural_tag(structure(schema=schema)))
