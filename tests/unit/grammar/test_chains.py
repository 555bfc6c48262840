"""How deep a guide goes: what libraries recurse with is bounded before they see it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.grammar.grammars import small_vocabulary
from support.grammar.guide_kinds import KINDS
from weft.errors import GuideError
from weft.grammar import CompileLimits, Guide, GuideCompiler
from weft.grammar.limits import chain_length


def references(count: int, wrap: Callable[[Any], Any] = lambda ref: ref, last: Any = True) -> dict[str, Any]:
    definitions = {f"d{i}": wrap({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return {"$defs": {**definitions, f"d{count}": last}, "$ref": "#/$defs/d0"}


def member(ref: Any) -> Any:
    return {"type": "object", "properties": {"a": ref}}


def lark(count: int, name: str = "a", body: str = "{}", last: str = '"a"') -> str:
    rules = "\n".join(f"{name}{i}: {body.format(f'{name}{i + 1}')}" for i in range(count))
    return f"start: {name}0\n{rules}\n{name}{count}: {last}\n"


def ebnf(count: int, body: str = "{}", last: str = '"a"') -> str:
    rules = "\n".join(f"a{i} ::= {body.format(f'a{i + 1}')}" for i in range(count))
    return f"root ::= a0\n{rules}\na{count} ::= {last}\n"


def schema(data: Any) -> Guide:
    return Guide("json_schema", json.dumps(data))


def tag(**content: Any) -> Guide:
    form = {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}
    return Guide("structural_tag", json.dumps({"type": "structural_tag", "format": form}))


CHAINS: dict[str, Callable[[int], Guide]] = {
    "references": lambda n: schema(references(n)),
    "references of members": lambda n: schema(references(n // 3, member)),
    "references in a ring": lambda n: schema(references(n, last={"$ref": "#/$defs/d0"})),
    "references to anchors": lambda n: schema(
        {"$defs": [{"$anchor": f"d{i}", "$ref": f"#d{i + 1}"} for i in range(n)], "$ref": "#d0"}
    ),
    "rules in Lark": lambda n: Guide.lark(lark(n)),
    "rules with options": lambda n: Guide.lark(lark(n).replace(":", '[capture="x"]:')),
    "terminals": lambda n: Guide.lark(lark(n, "A")),
    "rules in a ring": lambda n: Guide.lark(lark(n, body='{} | "y"', last="a0")),
    "rules within groups": lambda n: Guide.lark(lark(n // 3, body='"x" (("y"? {}))')),
    "rules behind a regex": lambda n: Guide.lark(lark(n, body="/x\n\\/y/ {}")),
    "a schema in Lark": lambda n: Guide.lark("start: %json " + json.dumps(references(n))),
    "groups in Lark": lambda n: Guide.lark("start: " + "(" * n + '"a"' + ")" * n),
    "rules": lambda n: Guide.ebnf(ebnf(n)),
    "rules backwards": lambda n: Guide.ebnf("\n".join(reversed(ebnf(n).splitlines()))),
    "groups": lambda n: Guide.ebnf("root ::= " + "(" * n + '"a"' + ")" * n),
    "groups of a regex": lambda n: Guide.regex("(" * n + "a" + ")" * n),
    "groups of a pattern": lambda n: schema({"type": "string", "pattern": "(" * n + "a" + ")" * n}),
    "a schema in a tag": lambda n: tag(type="json_schema", json_schema=references(n)),
    "a grammar in a tag": lambda n: tag(type="grammar", grammar=ebnf(n)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chains_length_is_found(name: str) -> None:
    assert 300 <= chain_length(CHAINS[name](300)) <= 310


@pytest.mark.parametrize(
    "name", [n if i % 8 == 0 else pytest.param(n, marks=pytest.mark.slow) for i, n in enumerate(CHAINS)]
)
def test_length_is_found_in_a_time_that_grows_with_the_text(name: str) -> None:
    def seconds(count: int) -> float:
        guide, times = CHAINS[name](count), []
        for _ in range(3):
            start = time.thread_time()
            chain_length(guide)
            times.append(time.thread_time() - start)
        return min(times)

    assert seconds(16_000) < 80 * seconds(1_000) + 0.05  # 256 times, were it the square


def test_objects_in_objects_count() -> None:
    assert chain_length(Guide("json_schema", '{"a":' * 99 + "{}" + "}" * 99)) == 100


def test_what_stands_beside_is_not_below() -> None:
    names = [f"a{i}" for i in range(900)]
    beside = [
        schema({"properties": {f"p{i}": {"$ref": "#/$defs/a"} for i in range(900)}, "$defs": {"a": {}}}),
        Guide.lark("start: " + " | ".join(names) + "".join(f'\n{name}: "(("' for name in names)),
        Guide.ebnf("root ::= " + " | ".join(names) + "".join(f"\n{name} ::= [(] # (" for name in names)),
        Guide.regex("(a)|" * 900 + r"\([(]\(" * 900),
        Guide.regex(r"[\]((((((((]"),
    ]  # fmt: skip
    assert [chain_length(guide) <= 5 for guide in beside] == [True] * 5


def test_honest_guides_are_far_from_the_bound() -> None:
    lengths = {name: chain_length(guide()) for name, guide in KINDS.items()}
    assert max(lengths.values()) < CompileLimits.untrusted().max_chain / 5


@pytest.mark.parametrize("backend", ["auto", "xgrammar", "llguidance"])
def test_a_chain_that_is_too_long_is_refused_and_one_at_the_bound_is_borne(backend: str) -> None:
    """Refused for everybody's guides, and named; at the bound compile threads have stack enough."""
    with GuideCompiler(small_vocabulary(), backend=backend) as compiler:
        most = compiler.limits.max_chain
        for guide in (
            schema(references(most, member)),
            Guide.ebnf(ebnf(most)),
            Guide.after("x", Guide.ebnf(ebnf(most))),
        ):
            with pytest.raises(GuideError, match=re.escape("(CompileLimits.max_chain)")):
                compiler.compile(guide)
        compiler.compile(schema(references(most // 3 - 2, member)))
        compiler.compile(Guide.ebnf(ebnf(most - 10)))
        if backend != "xgrammar":
            compiler.compile(Guide.lark(lark(most - 10, "A")))
