"""The shortest texts of a grammar's rules: right by enumeration, bounded, and found in linear time."""

from __future__ import annotations

import json
import random

import pytest
import xgrammar as xgr

from support.grammar.guides import GUIDES
from weft.errors import GuideError
from weft.grammar import CompileLimits, Guide
from weft.grammar.xgrammar.rules import _Graph, check_least
from weft.grammar.xgrammar.translate import grammar_of

LIMITS = CompileLimits.untrusted()


def least_of(source: str) -> int | None:
    data = json.loads(xgr.Grammar.from_ebnf(source).serialize_json())
    graph = _Graph(
        data["grammar_expr_data"], data["grammar_expr_indptr"], [rule[1] for rule in data["rules"]]
    )
    root = ("rule", data["root_rule_id"])
    return graph.least(root).get(root)


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ('root ::= "abc"', 3),
        ('root ::= "abc" | "de" | "fghi"', 2),
        ('root ::= "a"* "b"+ [c-f] [^x]*', 2),
        ('root ::= ("ab" | "c"){3,9} "d"?', 3),
        ('root ::= a{2,5} b\na ::= "xy" | "z" root\nb ::= ""', 4),
        ('root ::= "a" root | "b"', 1),
        ('root ::= "(" root ")" | root root | "x"', 1),
        ("root ::= root", None),
        ('root ::= "a" more\nmore ::= "b" root', None),
    ],
)
def test_the_shortest_text(source: str, size: int | None) -> None:
    assert least_of(source) == size


def shortest_by_passes(rules: list[list[list[int | str]]]) -> float:
    """The same, by going through all rules until nothing changes."""
    sizes = [float("inf")] * len(rules)
    for _ in rules:
        sizes = [
            min(sum(len(part) if isinstance(part, str) else sizes[part] for part in one) for one in rule)
            for rule in rules
        ]
    return sizes[0]


@pytest.mark.parametrize("seed", range(40))
def test_random_grammars(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(2, 9)
    rules: list[list[list[int | str]]] = [
        [
            [
                draw.choice([draw.randrange(count), "t" * draw.randint(1, 5)])
                for _ in range(draw.randint(1, 3))
            ]
            for _ in range(draw.randint(1, 3))
        ]
        for _ in range(count)
    ]
    names = ["root", *(f"r{i}" for i in range(1, count))]
    source = "\n".join(
        f"{name} ::= "
        + " | ".join(" ".join(f'"{p}"' if isinstance(p, str) else names[p] for p in one) for one in rule)
        for name, rule in zip(names, rules, strict=True)
    )
    expected = shortest_by_passes(rules)
    assert least_of(source) == (None if expected == float("inf") else expected)


def test_honest_guides_pass() -> None:
    for kind, argument in GUIDES:
        guide: Guide = getattr(Guide, kind)(*([] if argument is None else [argument]))
        if kind != "lark":
            check_least(grammar_of(guide).serialize_json(), LIMITS)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ('root ::= "b" | "a" more\nmore ::= "x" more', "can't be met: its rule more never ends"),
        ('root ::= "a" | "b" long{999,}\nlong ::= "x"{99}', "has 98902 bytes; at most 65536"),
    ],
)
def test_what_may_be_forced_for_too_long_is_refused(source: str, why: str) -> None:
    with pytest.raises(GuideError, match=why):
        check_least(xgr.Grammar.from_ebnf(source).serialize_json(), LIMITS)
