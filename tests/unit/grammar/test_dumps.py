"""Compiled guides as bytes: what comes back gives the same masks, and what does not fit is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from support.grammar.grammars import small_vocabulary
from support.grammar.guides import GUIDES
from weft.errors import GuideError
from weft.grammar import CompiledGuide, Guide, GuideCompiler, Vocabulary
from weft.guided.recorded_guide import RecordedGuide

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["age"],
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[GuideCompiler]:
    with GuideCompiler(small_vocabulary(), backend="xgrammar") as made:
        yield made


def walk(compiled: CompiledGuide, seed: int, length: int = 40) -> list[tuple[int, bytes]]:
    """Random tokens that the guide allows, and the masks before them."""
    draw = np.random.default_rng(seed)
    matcher, row, steps = compiled.matcher(), np.zeros(-(-compiled.vocab_size // 32), np.int32), []
    while len(steps) < length and not matcher.is_terminated():
        matcher.fill(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[: compiled.vocab_size])
        steps.append((int(draw.choice(allowed)), row.tobytes()))
        assert matcher.accept(steps[-1][0])
    return steps


@pytest.mark.parametrize("number", range(0, len(GUIDES), 6))
def test_what_comes_back_is_the_same(number: int, compiler: GuideCompiler) -> None:
    kind, argument = GUIDES[number]
    guide: Guide = getattr(Guide, kind)(argument)
    compiled = compiler.compile(guide)
    again = compiler.load(compiler.dump(compiled))
    assert again is not compiled
    assert (again.guide, again.notes, again.backend) == (guide, compiled.notes, "xgrammar")
    for seed in range(3):
        assert walk(again, seed) == walk(compiled, seed)


@pytest.mark.parametrize(
    "options", [{}, {"max_whitespace": 8}, {"max_whitespace": None}, {"separators": (", ", ": ")}]
)
def test_a_loaded_guide_is_not_compiled_again(compiler: GuideCompiler, options: dict[str, Any]) -> None:
    guide = Guide.json_schema(SCHEMA, **options)
    assert RecordedGuide.of(guide).guide() == guide
    data = compiler.dump(compiler.compile(guide))
    with GuideCompiler(small_vocabulary()) as fresh:  # "auto" reads what XGrammar wrote
        loaded = fresh.load(data)
        assert fresh.compile(guide) is loaded
        assert fresh.cache.num_hits == 1


def test_what_is_not_enforced_is_told_of_a_loaded_guide(compiler: GuideCompiler) -> None:
    guide = Guide.json_schema(
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, strict=False
    )
    compiled = compiler.compile(guide)
    assert compiled.notes
    assert compiler.load(compiler.dump(compiled)).notes == compiled.notes


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "weft-compiled-guide-0"}, "not a compiled guide that weft dumped"),
        ({"vocabulary": "other"}, "for another vocabulary"),
        ({"version": "0.0.1"}, "was made with xgrammar 0.0.1"),
        ({"library": "weft-has-none"}, "was made with weft-has-none .*, and no version is installed"),
        ({"library": ""}, "no version is installed"),
        ({"library": 7}, "not a compiled guide that weft dumped"),
        ({"compiled": "{}"}, "XGrammar can't read"),
        ({"compiled": 7}, "XGrammar can't read"),
        ({"guide": {"kind": "regex"}}, "not a compiled guide"),
        ({"guide": []}, "not a compiled guide"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], why: str, compiler: GuideCompiler) -> None:
    data = json.loads(compiler.dump(compiler.compile(Guide.regex("a+"))))
    with pytest.raises(GuideError, match=why):
        compiler.load(json.dumps({**data, **change}).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b"{}", b"[" * 100_000])
def test_bytes_that_are_no_dump_are_refused(data: bytes, compiler: GuideCompiler) -> None:
    with pytest.raises(GuideError, match="not a compiled guide that weft dumped"):
        compiler.load(data)


def test_what_no_library_can_write_is_refused() -> None:
    vocabulary: Vocabulary = small_vocabulary()
    with GuideCompiler(vocabulary, backend="llguidance") as compiler:
        compiled = compiler.compile(Guide.regex("a+"))
        with pytest.raises(
            GuideError, match="what llguidance compiled can't be dumped; keep the guide's text"
        ):
            compiler.dump(compiled)
        with GuideCompiler(vocabulary, backend="xgrammar") as other:
            data = other.dump(other.compile(Guide.regex("a+")))
        with pytest.raises(GuideError, match="xgrammar's, which this compiler does not use"):
            compiler.load(data)
        own = compiler.compile(Guide.matcher(Anything))
        with pytest.raises(GuideError, match="the guide matcher can't be dumped"):
            compiler.dump(own)


class Anything:
    """A matcher of a user's own."""

    def accept(self, token: int) -> bool:
        return True

    def fill(self, row: object) -> bool:
        return False

    def is_terminated(self) -> bool:
        return False
