"""What backends promise, over vocabularies of the sizes that models have: 300, 32,000 and 131,072 tokens."""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import pytest

from support.grammar.grammars import compiled_by, has_kind, vocabulary
from support.grammar.matcher_contract import Contract
from weft import registry
from weft.grammar import Backend, Guide, Matcher

SIZES = [300, 32_000, pytest.param(131_072, marks=pytest.mark.slow)]
STEPS = 5
GUIDES: list[tuple[str, Any]] = [
    ("json", None),
    ("json_schema", {"type": "object", "properties": {"ab": {"type": "string"}, "n": {"type": "number"}}}),
    ("regex", r"(the|[a-z]{2,12} )+[^a-z]"),
    ("ebnf", 'root ::= "(" root ")" | [a-z]+'),
    ("choice", ["north by northwest", "north", "é\U0001f600"]),
]


@functools.cache
def backend(name: str, size: int) -> Backend:
    made: Backend = registry.load("grammars", name)(vocabulary(size))
    return made


def mask(matcher: Matcher, size: int) -> np.ndarray:
    row = np.full(-(-size // 32), -1, dtype=np.int32)
    matcher.fill(row)
    return row


def allowed(row: np.ndarray) -> np.ndarray:
    return np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0]


@pytest.mark.parametrize("entry", GUIDES, ids=lambda entry: entry[0])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", registry.names("grammars"))
def test_a_walk_keeps_the_contract(name: str, size: int, entry: tuple[str, Any]) -> None:
    kind, argument = entry
    guide = getattr(Guide, kind)() if argument is None else getattr(Guide, kind)(argument)
    contract = Contract(compiled_by(backend(name, size), guide).matcher, vocabulary(size))
    contract.walk(random.Random(size), STEPS)
    contract.forks_and_resets(random.Random(3))
    contract.ends_and_takes_the_end_back(random.Random(11))


@pytest.mark.parametrize(
    ("kind", "argument"),
    [
        ("regex", r"(the|[a-z]{2,12} )+[^a-z]"),
        ("ebnf", 'root ::= "(" root ")" | [a-z]+'),
        ("choice", ["ab", "abc"]),
    ],
)
@pytest.mark.parametrize("size", SIZES)
def test_backends_agree_where_a_guide_leaves_nothing_open(kind: str, argument: Any, size: int) -> None:
    """What a regex, a grammar or a choice allows is the same whatever compiles it, bit for bit."""
    guide = getattr(Guide, kind)(argument)
    libraries = [backend(name, size) for name in registry.names("grammars")]
    matchers = [library.compile(guide).matcher() for library in libraries if has_kind(library, kind)]
    rng = random.Random(1)
    for _ in range(STEPS):
        rows = [mask(matcher, size) for matcher in matchers]
        for row in rows[1:]:
            np.testing.assert_array_equal(row, rows[0])
        token = rng.choice(allowed(rows[0]).tolist())
        assert all(matcher.accept(token) for matcher in matchers)
        if matchers[0].is_terminated():
            break
