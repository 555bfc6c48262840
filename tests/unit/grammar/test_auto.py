"""The backend "auto": which library compiles what, what is said of it, and that a replay uses the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.grammar.grammars import END, ids, small_vocabulary
from weft import registry
from weft.config import EngineConfig
from weft.errors import GuideError, InputError, InterfaceError
from weft.executor import ExecutorConfig, GuidedDecodingBackend, GuidedDecodingConfig
from weft.executor.settings import engine_config
from weft.grammar import Guide, GuideCompiler
from weft.grammar.auto import AutoBackend
from weft.grammar.llguidance.backend import not_enforced as llguidance_notes
from weft.grammar.notes import Notes
from weft.grammar.xgrammar.translate import not_enforced as xgrammar_notes
from weft.guided.recorded_guide import RecordedGuide
from weft.replay.slot_assignments import _compile


@pytest.fixture(scope="module")
def backend() -> AutoBackend:
    return AutoBackend(small_vocabulary())


@pytest.mark.parametrize(
    "guide",
    [
        Guide.json_schema({"type": "array"}, any_order=True),
        Guide.regex("[a-z]+"),
        Guide.ebnf('root ::= "[" root "]" | "a"'),
        Guide.choice(["a", "b"]),
        Guide.structural_tag({"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}),
    ],
)
def test_what_is_xgrammars(backend: AutoBackend, guide: Guide) -> None:
    assert backend.compile(guide).backend == "xgrammar"


@pytest.mark.parametrize(
    ("guide", "good", "bad"),
    [
        (
            Guide.json_schema({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}),
            '"axb"',
            '"ax"',
        ),
        (Guide.json_schema({"type": "number", "multipleOf": 0.5}), "1.5", "1.3"),
        (Guide.regex(r"(?i)ab"), "AB", "b"),
        (Guide.regex(r"\p{Lu}x"), "Éx", "éx"),
        (Guide.choice(["a\0b", "c"]), "a\0b", "ab"),
    ],
)
def test_llguidance_goes_where_xgrammar_can_not(
    backend: AutoBackend, guide: Guide, good: str, bad: str
) -> None:
    compiled = backend.compile(guide)
    assert compiled.backend == "llguidance" and not compiled.notes
    matcher = compiled.matcher()
    assert matcher.validate([*ids(good), END]) == len(ids(good)) + 1
    assert matcher.validate([*ids(bad), END]) < len(ids(bad)) + 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"},
        {"enum": [1, "a", None]},
    ],
)
def test_a_schema_that_both_enforce_is_the_faster_ones(backend: AutoBackend, schema: dict[str, Any]) -> None:
    guide = Guide.json_schema(schema)
    assert not Notes.of(xgrammar_notes(guide)) and not Notes.of(llguidance_notes(guide))
    assert backend.compile(guide).backend == "llguidance"


def test_only_xgrammar_enforces_names_by_a_schema(backend: AutoBackend) -> None:
    names = {"type": "object", "propertyNames": {"type": "string", "pattern": "^[ab]$"}}
    compiled = backend.compile(Guide.json_schema(names))
    assert (compiled.backend, compiled.notes) == ("xgrammar", ())
    assert compiled.matcher().validate(ids('{"c')) < 3


def test_whoever_asks_for_whole_answers_gets_xgrammar() -> None:
    guide = Guide.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
    with GuideCompiler(small_vocabulary()) as compiler:
        plain = compiler.submit(guide)
        whole = compiler.submit_closing(plain).result(60)
        assert (plain.result(60).backend, whole.backend) == ("llguidance", "xgrammar")
        assert compiler.submit_closing(compiler.submit(guide)).result(60) is whole, "it is kept, too"
        assert compiler.compile(guide) is plain.result(), "and in nobody's way"
        refused = compiler.submit_closing(
            compiler.submit(Guide.json_schema({"type": "number", "multipleOf": 0.5}))
        )
        with pytest.raises(
            GuideError, match=r"XGrammar does not enforce .*multipleOf is enforced on integers only"
        ):
            refused.result(60)


def test_lark_is_llguidances_without_a_word(backend: AutoBackend) -> None:
    compiled = backend.compile(Guide.lark('start: "a" start | "b"'))
    assert compiled.backend == "llguidance"
    with pytest.raises(GuideError, match=r"^LLGuidance: Lark: "):
        backend.compile(Guide.lark("start: missing"))


@pytest.mark.parametrize(
    ("guide", "reasons"),
    [
        (Guide.regex("a(?=b)"), ["Lookahead is not supported", "look-ahead"]),
        (
            Guide.json_schema({"type": "array", "uniqueItems": True}),
            [
                "XGrammar does not enforce all of it: #: uniqueItems",
                "LLGuidance does not enforce all of it: #: uniq",
            ],
        ),
        (
            Guide.json_schema({"type": "object", "required": ["a"]}, any_order=True),
            ["any_order: required is not enforced", "any_order needs XGrammar"],
        ),
    ],
)
def test_what_neither_can(backend: AutoBackend, guide: Guide, reasons: list[str]) -> None:
    with pytest.raises(GuideError, match="no grammar library can express the guide") as raised:
        backend.compile(guide)
    for reason in reasons:
        assert reason in str(raised.value)


def test_what_neither_enforces_is_left_out_with_a_note(backend: AutoBackend) -> None:
    compiled = backend.compile(Guide.json_schema({"type": "array", "uniqueItems": True}, strict=False))
    assert compiled.notes == ("#: uniqueItems is not enforced",)
    held = {"type": "number", "multipleOf": 0.5, "minimum": 3, "not": {"multipleOf": 7}}
    compiled = backend.compile(Guide.json_schema(held, strict=False))
    assert (compiled.backend, compiled.notes) == ("llguidance", ("#: not is not enforced",))
    assert compiled.matcher().validate([*ids("2"), END]) < 2


def another_version(*_: Any, **__: Any) -> None:
    raise InterfaceError("it is another version")


def test_without_llguidance_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.GRAMMARS, "llguidance", f"{__name__}:another_version")
    backend = AutoBackend(small_vocabulary())
    assert backend.compile(Guide.regex("ab")).matcher().validate([*ids("ab"), END]) == 3
    for guide in (Guide.lark('start: "a"'), Guide.regex("(?i)a")):
        with pytest.raises(GuideError, match="it is another version"):
            backend.compile(guide)


def test_without_xgrammar_its_guides_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.GRAMMARS, "xgrammar", f"{__name__}:another_version")
    backend = AutoBackend(small_vocabulary())
    guide = Guide.ebnf('root ::= "a"')
    with pytest.raises(GuideError, match="it is another version"):
        backend.compile(guide)
    with pytest.raises(GuideError, match="it is another version"):
        backend.restore(guide, "{}", ())
    assert backend.compile(Guide.regex("ab")).backend == "llguidance"


def test_guides_that_differ_in_an_option_are_compiled_apart() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
    one, other = Guide.json_schema(schema), Guide.json_schema(schema, any_order=True, strict=False)
    assert one != other
    text = ids('{"b": null, "a": null}')
    with GuideCompiler(small_vocabulary()) as compiler:
        assert compiler.compile(other).matcher().validate(text) == len(text)
        assert compiler.compile(one).matcher().validate(text) < len(text)
        inner = compiler.compile(Guide.after("!", other))
        assert inner.matcher().validate([*ids("so!"), *text]) == len(text) + 3


def test_a_recording_compiles_with_the_library_that_it_names() -> None:
    guides = [
        RecordedGuide.of(Guide.regex("(?i)ab"), "llguidance"),
        RecordedGuide.of(Guide.regex("ab"), None),
        RecordedGuide.of(Guide.regex("ab"), "nobody"),
    ]

    class Recorded:
        pass

    recording: Any = Recorded()
    recording.guides = guides
    compiled = _compile(recording, small_vocabulary())
    assert [getattr(compiled[i], "backend", "") for i in (0, 1)] == ["llguidance", "xgrammar"]
    assert "'nobody' is not one of the grammars" in str(compiled[2])


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (None, "auto"),
        (GuidedDecodingConfig(), "auto"),
        (GuidedDecodingConfig(GuidedDecodingBackend.XGRAMMAR), "xgrammar"),
        (GuidedDecodingConfig(GuidedDecodingBackend.LLGUIDANCE), "llguidance"),
    ],
)
def test_what_an_executor_asks_for(config: GuidedDecodingConfig | None, name: str) -> None:
    assert engine_config(ExecutorConfig(guided_decoding_config=config)).grammar == name


def test_names_that_are_none() -> None:
    with pytest.raises(
        InputError, match=r'grammar is \'lark\'; it must be "auto", "xgrammar"(, "\w+")* or "\w+"'
    ):
        EngineConfig(grammar="lark")


def test_the_command_line(tmp_path: Path) -> None:
    from weft.cli.guides import GuideOptions, read_guide

    file = tmp_path / "g.lark"
    file.write_text('start: "a"')
    assert read_guide(GuideOptions(lark=file)) == Guide.lark('start: "a"')
    with pytest.raises(InputError, match="--regex and --lark were given"):
        read_guide(GuideOptions(regex="a", lark=file))
