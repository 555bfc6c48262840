"""Checks that strict guides enforce their schemas: masks and matchers on each text byte by byte, and texts sampled
from the masks against `json.loads` and `jsonschema`."""

from __future__ import annotations

import functools
import json
import random
from typing import Any

from jsonschema import Draft202012Validator

from support.grammar.grammars import END, allowed, new_row, small_vocabulary
from weft.errors import GuideError
from weft.grammar import CompiledGuide, Guide
from weft.grammar.auto import AutoBackend

LIBRARIES = ["xgrammar", "llguidance"]
NULL = {"type": "null"}
NOTHING = {"allOf": [{"type": "boolean"}, {"type": "object"}]}


@functools.cache
def backend() -> AutoBackend:
    return AutoBackend(small_vocabulary())


def takes(compiled: CompiledGuide, text: str) -> bool:
    """Whether mask and matcher accept each byte of the text, and then the end token. Mask and matcher must agree."""
    matcher = compiled.matcher()
    for token in (*(3 + byte for byte in text.encode()), END):
        row = new_row()
        is_allowed = not matcher.fill(row) or token in allowed(row)
        assert matcher.accept(token) == is_allowed
        if not is_allowed:
            return False
    return True


def sampled(compiled: CompiledGuide, seed: int, likely: frozenset[int]) -> str | None:
    """Sample a text under the masks. None if it does not end in time."""
    rng, matcher = random.Random(seed), compiled.matcher()
    tokens: list[int] = []
    for _ in range(200):
        row = new_row()
        choices = allowed(row) if matcher.fill(row) else list(range(3, 259))
        if END in choices and (len(choices) == 1 or rng.random() < 0.3):
            return small_vocabulary().decode(tokens).decode(errors="replace")
        ours = [token for token in choices if token - 3 in likely] if rng.random() < 0.9 else []
        tokens.append(rng.choice(ours or [token for token in choices if token != END]))
        assert matcher.accept(tokens[-1])
    return None


def is_valid(schema: Any, text: str) -> bool:
    checker = Draft202012Validator.FORMAT_CHECKER
    return bool(Draft202012Validator(schema, format_checker=checker).is_valid(json.loads(text)))


def hold(schema: Any, good: list[str], bad: list[str], **options: Any) -> int:
    """Return the number of libraries that compile the schema. Each must accept the `good` texts and refuse the `bad`
    ones, and every text sampled from it must be valid."""
    count = 0
    for library in LIBRARIES:
        try:
            compiled = backend().libraries[library].compile(Guide.json_schema(schema, **options))
        except GuideError:
            continue
        count += 1
        assert compiled.notes == ()
        for text in good:
            assert is_valid(schema, text), text
            assert takes(compiled, text), (library, text)
        for text in bad:
            assert not takes(compiled, text), (library, text)
        for seed in range(12):
            found = sampled(compiled, seed, frozenset("".join([*good, *bad]).encode()))
            assert found is None or is_valid(schema, found), (library, found)
    return count
