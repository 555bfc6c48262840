"""`graphs.py`: a small run, and a capture while serving is a failure."""

from __future__ import annotations

import pytest

import graphs
from weft import LLM


def test_a_warm_engine_captures_nothing() -> None:
    report = graphs.run("weft-tiny", "none,ngram", 2, max_batch=2, calls=2)
    assert [(row["speculation"], row["K"]) for row in report.rows] == [("none", 0), ("ngram", 2)]
    for row in report.rows:
        assert row["graphs"] > 1 and row["nodes"] > row["graphs"]
        assert row["python_nodes"] == row["captures_while_serving"] == 0
    assert not report.failures


def test_a_capture_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LLM, "warm_up", lambda self: None)
    report = graphs.run("weft-tiny", "none", 1, max_batch=1, calls=1)
    captures = report.rows[0]["captures_while_serving"]
    assert captures and f"captures_while_serving is {captures}" in report.failures[0]["error"]
