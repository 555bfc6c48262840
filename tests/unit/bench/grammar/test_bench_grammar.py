"""The matcher benchmark runs and reports what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft_bench.grammar.calls import run


def test_it_reports_each_kind_of_call(tmp_path: Path) -> None:
    report = run(vocab=600, batch=3, repeat=2)
    assert [row["call"] for row in report.rows] == [
        "fill",
        "accept + rollback",
        "commit of 3",
        "commit of 3, Python busy",
    ]
    for row in report.rows:
        assert row["native_us"] > 0
        assert row["python_over_native"] == pytest.approx(row["python_us"] / row["native_us"])
    written = json.loads(report.write(tmp_path).read_text())
    assert written["summary"] == {"vocab": 600, "batch": 3, "words": 19}
