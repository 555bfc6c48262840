"""Walks find what a guide costs, however far in, and let honest guides pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.grammar import guides
from support.grammar.grammars import small_vocabulary
from weft.errors import GuideError, GuideStateError
from weft.grammar import CompileLimits, Guide, GuideCompiler
from weft.grammar.compile.walk import _check_growth, walk

LIMITS = CompileLimits.untrusted()
PREFIX = "x" * 60
AMBIGUOUS = {
    "from the start": Guide.ebnf('root ::= s\ns ::= s s | [a-z ] | ""'),
    "after a literal": Guide.ebnf(f'root ::= "{PREFIX}" s "}}"\ns ::= s s | [a-z ] | ""'),
    "after one of two": Guide.ebnf(f'root ::= ("{PREFIX}" | "y{PREFIX}") s "}}"\ns ::= s s | [a-z]'),
    "three at a time": Guide.ebnf('root ::= "[" s "]"\ns ::= s s s | s s | [a-z]'),
    "expressions": Guide.ebnf('root ::= e\ne ::= e "+" e | [0-9]'),
    "in Lark": Guide.lark(f'start: "{PREFIX}" s "}}"\ns: s s | /[a-z ]/ | ""'),
}
GROWING = {
    "to the right": Guide.lark('start: /[^"]/ start | "!"'),
    "to the right, or nothing": Guide.lark('start: (/[^"]/ start)?'),
    "to the right by two rules": Guide.lark('start: /[a-z]/ b | "!"\nb: /[a-z]/ start | "?"'),
    "to the right by three": Guide.lark('start: /[a-z]/ b | "!"\nb: /[a-z]/ c | "?"\nc: /[a-z]/ start | "."'),
    "to the right behind a literal": Guide.lark(f'start: "{PREFIX}" s\ns: /[^"]/ s | "!"'),
}
PLAIN = {
    "repeated in Lark": Guide.lark('start: (/[^"]/)* "!"'),
    "to the left in Lark": Guide.lark('start: start i | i\ni: /[a-z]+/ " "'),
    "a list in Lark": Guide.lark('start: "[" v ("," v)* "]"\nv: /[0-9]+/ | start'),
    "many of a class": Guide.ebnf("root ::= [a-z]{1,9999}"),
    "many of any": Guide.regex(".{1,9000}"),
    "a text of a length": Guide.json_schema({"type": "string", "minLength": 900, "maxLength": 5000}),
    "to the left": Guide.ebnf('root ::= root i | i\ni ::= [a-z]+ " "'),
    "to the right": Guide.ebnf('root ::= i root | i\ni ::= [a-z]+ " "'),
    "expressions": Guide.ebnf('root ::= root "+" n | n\nn ::= [0-9]+ | "(" root ")"'),
    "nested": Guide.ebnf('root ::= "(" root ")" | "[" root* "]" | "x"'),
    "dear after cheap": Guide.ebnf(f'root ::= "{PREFIX}" "yes" [0-9]{{40}} [^"]* "end"'),
    "any": Guide.json(),
}


def some(guides: dict[str, Guide]) -> list[Any]:
    """Every third name; the others, which take as long, as `slow`."""
    return [n if i % 3 == 0 else pytest.param(n, marks=pytest.mark.slow) for i, n in enumerate(guides)]


@pytest.fixture(scope="module")
def compiler() -> Iterator[GuideCompiler]:
    with GuideCompiler(small_vocabulary()) as made:
        yield made


@pytest.mark.parametrize("name", some(AMBIGUOUS))
def test_a_grammar_that_costs_more_with_each_token_is_refused(compiler: GuideCompiler, name: str) -> None:
    with pytest.raises(GuideError, match=r"CompileLimits\.mask_time_s"):
        walk(compiler.compile(AMBIGUOUS[name]), compiler.vocabulary, LIMITS)


@pytest.mark.parametrize("name", some(GROWING))
def test_a_grammar_that_costs_a_little_more_with_each_token_is_refused(
    compiler: GuideCompiler, name: str
) -> None:
    """Each mask is timed where it is made, and what grows is followed far enough to see what becomes of it."""
    with pytest.raises((GuideError, GuideStateError), match=r"longer than those before|right-recursive"):
        walk(compiler.compile(GROWING[name]), compiler.vocabulary, LIMITS)


@pytest.mark.parametrize("name", PLAIN)
def test_a_grammar_that_does_not_passes(compiler: GuideCompiler, name: str) -> None:
    walk(compiler.compile(PLAIN[name]), compiler.vocabulary, LIMITS)


def test_honest_schemas_pass(compiler: GuideCompiler) -> None:
    for schema in list(guides.SCHEMAS.values())[::6]:
        walk(compiler.compile(Guide.json_schema(schema, strict=False)), compiler.vocabulary, LIMITS)


def test_growth_is_told_from_a_part_that_is_dear() -> None:
    def steps(*seconds: float) -> list[tuple[int, float]]:
        return [(i, seconds[i * len(seconds) // 384]) for i in range(384)]

    _check_growth(steps(1e-5, 1e-5, 2e-2), LIMITS)
    _check_growth(steps(*[1e-5, 2e-2] * 8), LIMITS)
    _check_growth(steps(2e-2, 1e-5), LIMITS)
    _check_growth([(i, 1e-7 * i) for i in range(384)], LIMITS)  # right recursion
    with pytest.raises(GuideError, match="each token of the guide takes longer than those before"):
        _check_growth([(i, 1e-8 * i * i) for i in range(384)], LIMITS)
