"""XGrammar natively: what goes through Python, what is tried again, and what masks do not depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xgrammar as xgr

from support.grammar.grammars import END, ids, new_row, small_vocabulary, takes
from weft.grammar import Guide, Vocabulary
from weft.grammar.xgrammar import backend as adapter
from weft.grammar.xgrammar.backend import XGrammarBackend


def test_repetitions_that_break_the_cache_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """XGrammar's compile cache fails on some long repetitions; a compiler without a cache takes them."""
    guide = Guide.json_schema({"type": "string", "pattern": r"^\S{1,200}$"})
    assert takes(XGrammarBackend(small_vocabulary(), threads=1), guide, '"' + "a" * 200 + '"')
    backend = XGrammarBackend(small_vocabulary(), threads=1)
    calls = []

    class Failing:
        def compile_grammar(self, grammar: xgr.Grammar) -> None:
            calls.append(grammar)
            raise RuntimeError("Check failed: per_rule_fsm_hashes[0] ...")

    make = backend._compiler

    def made(vocabulary: Vocabulary, *, cache_enabled: bool) -> Any:
        return Failing() if cache_enabled else make(vocabulary, cache_enabled=False)

    monkeypatch.setattr(backend, "_compiler", made)
    assert backend.compile(Guide.regex("abc")).matcher().validate(ids("abc")) == 3
    assert len(calls) == 1


def test_masks_do_not_depend_on_what_was_compiled_before() -> None:
    """XGrammar's own cache gives the second of these masks that let "[[" through, which its matcher then refuses."""
    before = {"anyOf": [{"type": "array"}, {"type": "array", "maxItems": 0}]}
    guide = Guide.json_schema({"minItems": 0, "maxItems": 0})
    backend = XGrammarBackend(small_vocabulary())
    backend.compile(Guide.json_schema(before))
    rows = [new_row(), new_row()]
    for row, made in zip(rows, (backend, XGrammarBackend(small_vocabulary())), strict=True):
        made.compile(guide).matcher().fill(row)
    assert np.array_equal(*rows)


def test_the_fallback_through_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interface that is not the expected one is warned about, and matchers work all the same."""
    adapter.native_is_usable.cache_clear()
    monkeypatch.setattr(adapter._core, "xgrammar_bind", lambda *_: "a function is missing")
    try:
        with pytest.warns(
            RuntimeWarning, match=r"a function is missing.*xgrammar 0\.2\.x on apache-tvm-ffi 0\.1\.x"
        ):
            backend = XGrammarBackend(small_vocabulary())
        assert backend.compile(Guide.regex("ab")).matcher().validate([*ids("ab"), END]) == 3
        with pytest.raises(RuntimeError, match="can't be called natively"):
            XGrammarBackend(small_vocabulary(), native=True)
    finally:
        adapter.native_is_usable.cache_clear()


def test_the_self_test_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    assert adapter._self_test() == ""
    monkeypatch.setattr(adapter.XGrammarMatcher, "accept", lambda self, token: token == 3)
    assert adapter._self_test() == "its native accept does not do what Python's does"
