"""The backend "auto": which library compiles what, what is said of it, and that a replay uses the same."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from grammars import END, small_vocabulary
from weft.config import EngineConfig
from weft.errors import GuideError, InputError, InterfaceError
from weft.executor import ExecutorConfig, GuidedDecodingBackend, GuidedDecodingConfig
from weft.executor.translate import engine_config
from weft.grammar import Guide, GuideCompiler, GuideWarning
from weft.grammar import auto as adapter
from weft.grammar.auto import AutoBackend
from weft.guided.recorded_guide import RecordedGuide
from weft.replay.tenancies import _compile


@pytest.fixture(scope="module")
def backend() -> AutoBackend:
    return AutoBackend(small_vocabulary())


def ids(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()]


@pytest.mark.parametrize(
    "guide",
    [
        Guide.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}}),
        Guide.json_schema({"type": "object"}, any_order=True),
        Guide.regex("[a-z]+"),
        Guide.ebnf('root ::= "[" root "]" | "a"'),
        Guide.choice(["a", "b"]),
        Guide.structural_tag({"type": "structural_tag", "format": {"type": "const_string", "value": "a"}}),
    ],
)
def test_xgrammar_goes_first(backend: AutoBackend, guide: Guide) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backend.compile(guide).backend == "xgrammar"


@pytest.mark.parametrize(
    ("guide", "reason", "good", "bad"),
    [
        (
            Guide.json_schema({"allOf": [{"type": "integer"}, {"minimum": 3}]}, strict=True),
            "allOf of more than one schema is not enforced",
            "4",
            "2",
        ),
        (Guide.json_schema({"type": "number", "multipleOf": 0.5}), "on integers only", "1.5", "1.3"),
        (Guide.regex(r"(?i)ab"), "Group modifier flag is not supported", "AB", "b"),
        (Guide.regex(r"\p{Lu}x"), "Unicode character class", "Éx", "éx"),
        (Guide.choice(["a\0b", "c"]), "can't spell a NUL character", "a\0b", "ab"),
    ],
)
def test_llguidance_goes_where_xgrammar_can_not(
    backend: AutoBackend, guide: Guide, reason: str, good: str, bad: str
) -> None:
    with pytest.warns(
        GuideWarning, match=f"LLGuidance is used for a guide, since XGrammar: .*{reason}"
    ) as caught:
        compiled = backend.compile(guide)
    assert len(caught) == 1
    assert compiled.backend == "llguidance"
    matcher = compiled.matcher()
    assert matcher.validate([*ids(good), END]) == len(ids(good)) + 1
    assert matcher.validate([*ids(bad), END]) < len(ids(bad)) + 1


def test_lark_is_llguidances_without_a_word(backend: AutoBackend) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = backend.compile(Guide.lark('start: "a" start | "b"'))
    assert compiled.backend == "llguidance"
    with pytest.raises(GuideError, match=r"^LLGuidance: Lark: "):
        backend.compile(Guide.lark("start: missing"))


@pytest.mark.parametrize(
    ("guide", "reasons"),
    [
        (Guide.regex("a(?=b)"), ["Lookahead is not supported", "look-ahead"]),
        (
            Guide.json_schema({"type": "array", "uniqueItems": True}, strict=True),
            ["uniqueItems is not enforced", "Unimplemented keys"],
        ),
        (Guide.json_schema(False), ["cannot accept any value", "LLGuidance"]),
        (
            Guide.json_schema({"type": "object", "not": {}}, any_order=True, strict=True),
            ["not is not enforced", "any_order needs XGrammar"],
        ),
    ],
)
def test_what_neither_can(backend: AutoBackend, guide: Guide, reasons: list[str]) -> None:
    with pytest.raises(GuideError, match="no grammar library can express the guide") as raised:
        backend.compile(guide)
    for reason in reasons:
        assert reason in str(raised.value)


def test_what_neither_enforces_is_left_out_with_a_warning(backend: AutoBackend) -> None:
    with pytest.warns(GuideWarning, match="by XGrammar: #: uniqueItems is not enforced"):
        compiled = backend.compile(Guide.json_schema({"type": "array", "uniqueItems": True}))
    assert compiled.backend == "xgrammar"


def test_without_llguidance_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise InterfaceError("it is another version")

    monkeypatch.setattr(adapter, "LLGuidanceBackend", fail)
    backend = AutoBackend(small_vocabulary())
    assert backend.compile(Guide.regex("ab")).matcher().validate([*ids("ab"), END]) == 3
    for guide in (Guide.lark('start: "a"'), Guide.regex("(?i)a")):
        with pytest.raises(GuideError, match="it is another version"):
            backend.compile(guide)


def test_a_guide_is_warned_of_once() -> None:
    guides = [Guide.regex("(?i)once") for _ in range(3)]
    with GuideCompiler(small_vocabulary()) as compiler:
        with pytest.warns(GuideWarning) as caught:
            compiled = [compiler.compile(guide) for guide in guides]
        assert len(caught) == 1
    assert len({id(each) for each in compiled}) == 1


@pytest.mark.filterwarnings("ignore:.*any_order")
def test_guides_that_differ_in_an_option_are_compiled_apart() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}
    one, other = Guide.json_schema(schema), Guide.json_schema(schema, any_order=True)
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
        InputError, match='grammar is \'lark\'; it must be "auto", "xgrammar" or "llguidance"'
    ):
        EngineConfig(grammar="lark")  # type: ignore[arg-type]


def test_the_command_line(tmp_path: Path) -> None:
    from weft.cli.inputs import read_guide

    file = tmp_path / "g.lark"
    file.write_text('start: "a"')
    assert read_guide(False, None, None, None, None, lark=file) == Guide.lark('start: "a"')
    with pytest.raises(InputError, match="--regex and --lark were given"):
        read_guide(False, None, "a", None, None, lark=file)
