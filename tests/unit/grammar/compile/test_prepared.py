"""What a trial hands over to be built: its wire form, and that nothing of a guide's text is read where others wait."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from support.grammar.grammars import END, allowed, new_row, small_vocabulary
from weft import _core
from weft.errors import GuideError, UnavailableError
from weft.grammar import CompileLimits, Guide, GuideCompiler
from weft.grammar.auto import AutoBackend
from weft.grammar.base import Opening, Prepared
from weft.grammar.compile.parts import Part, Parts, TriedParts, packed, unpacked
from weft.grammar.kinds.closing import closing_matcher
from weft.grammar.xgrammar.backend import CompiledXGrammar

SCHEMA = {
    "type": "object",
    "properties": {"a": {"oneOf": [{"const": 1}, {"type": "string", "maxLength": 2}]}},
    "required": ["a"],
}


def test_parts_are_the_same_on_the_other_side() -> None:
    parts = {
        "a": Part("xgrammar", Prepared("grammar", "é\n\ud800", ("a note", "and 3 more"))),
        "b": Part("llguidance", Prepared("lark", "")),
        "c": Part(None, None),
        "d": Part("xgrammar", Prepared("grammar", "x" * 10_000)),
    }
    rows, texts = packed(parts)
    assert unpacked(json.loads(json.dumps(rows)), texts) == parts
    with pytest.raises(ValueError, match="bytes of texts"):
        unpacked(rows, texts[:-1])


GUIDES = [
    Guide.json_schema(SCHEMA),
    Guide.json_schema(
        {"oneOf": [{"minimum": 1, "type": "number"}, {"maximum": 2, "type": "number"}]}, strict=False
    ),
    Guide.regex("a|b+"),
    Guide.ebnf('root ::= "a" | [b-c]*'),
    Guide.lark('start: "a" | /b+/'),
    Guide.choice(["a", "bc"]),
    Guide.structural_tag({"format": {"type": "json_schema", "json_schema": SCHEMA}}),
    Guide.after("<a>", Guide.after("<b>", Guide.json_schema(SCHEMA))),
]


@pytest.fixture(scope="module")
def serving() -> Iterator[GuideCompiler]:
    """A compiler for strangers that reads no text and prepares nothing itself."""
    with pytest.MonkeyPatch.context() as patched, GuideCompiler(small_vocabulary(), untrusted=True) as made:
        patched.setattr(TriedParts, "check_leaf", None)
        for library in made._backend.libraries.values():  # type: ignore[attr-defined]
            patched.setattr(library, "prepare", None)
        yield made


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.kind)
def test_what_a_trial_prepared_compiles_to_the_same(guide: Guide, serving: GuideCompiler) -> None:
    """As without a trial: notes, library, and masks along random walks."""
    expected = Parts(small_vocabulary(), AutoBackend(small_vocabulary()), CompileLimits()).compile_part(guide)
    found = serving.compile(guide)
    assert (found.backend, found.notes) == (expected.backend, expected.notes)
    rng = random.Random(1)
    for _ in range(8):
        ours, theirs = found.matcher(), expected.matcher()
        for _ in range(40):
            rows = [new_row(), new_row()]
            limited = [ours.fill(rows[0]), theirs.fill(rows[1])]
            assert limited[0] == limited[1] and (rows[0] == rows[1]).all()
            token = rng.choice(allowed(rows[0]) if limited[0] else [40, 41])
            assert ours.accept(token) and theirs.accept(token)
            if token == END:
                break


def test_ends_are_worked_out_of_what_the_trial_prepared(
    serving: GuideCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CompiledXGrammar, "_serialised", None)
    closed = serving.submit_closing(serving.submit(Guide.regex("ab{2,9}c"))).result(timeout=60)
    matcher = closing_matcher(closed, Opening(room=5))
    tokens = [*(3 + byte for byte in b"abbc"), END]
    assert matcher.validate(tokens) == len(tokens)
    assert matcher.validate([3 + byte for byte in b"abbb"]) == 3  # no end would fit behind


def test_a_hand_over_that_is_cut_short_is_nobodys_refusal(
    serving: GuideCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = Guide.regex("cut short")
    monkeypatch.setattr("weft.grammar.compile.trial.unpacked", lambda rows, texts: unpacked(rows, texts[:-1]))
    with pytest.raises(UnavailableError, match="was ended; send the guide again"):
        serving.compile(guide)
    monkeypatch.undo()
    assert serving.compile(guide).backend == "xgrammar"


@pytest.mark.parametrize("is_untrusted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_unread_guide_is_what_the_read_one_is(is_untrusted: bool) -> None:
    """Its errors come when it is compiled."""
    text = (
        '{"type": "object",  "properties": {"a": {"type":"integer", "type": "boolean"}}, "required": ["a"]}'
    )
    tag = json.dumps({"format": {"type": "json_schema", "json_schema": json.loads(text)}})
    with GuideCompiler(small_vocabulary(), untrusted=is_untrusted) as compiler:
        for kind, source in (("json_schema", text), ("structural_tag", tag)):
            matcher = compiler.compile(Guide.unread(kind, source)).matcher()  # type: ignore[arg-type]
            good = [*(3 + byte for byte in b'{"a": true}'), END]
            assert matcher.validate(good) == len(good)
        wrong: list[tuple[Any, str, str]] = [
            ("json_schema", "{", "not valid JSON"),
            ("json_schema", '{"type": "text"}', "at #: type is 'text'"),
            ("structural_tag", "{}", "must have a format"),
            ("structural_tag", tag.replace("boolean", "text"), "type is 'text'"),
        ]
        for kind, source, message in wrong:
            with pytest.raises(GuideError, match=message):
                compiler.compile(Guide.unread(kind, source))


def test_how_deep_brackets_nest() -> None:
    texts = {
        "": 0,
        "1": 0,
        "[]": 1,
        '[{"a":[]}]': 3,
        '"[[["': 0,
        r'"\"[["': 0,
        r'["\\",[]]': 2,
        "]]][": 1,
        '["': 1,
        "[[": 2,
    }
    for text, depth in texts.items():
        assert _core.json_depth(text) == depth, text
