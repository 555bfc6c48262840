"""`loading.py`: a small run."""

from __future__ import annotations

import pytest

import loading


@pytest.mark.parametrize("is_cold", [False, True])
def test_memory_and_time_of_loading_are_measured(is_cold: bool) -> None:
    report = loading.run("weft-tiny", "auto,float32", 1, is_cold)
    assert [row["dtype"] for row in report.rows] == ["auto", "float32"]
    for row in report.rows:
        assert row["model"] == "weft-tiny" and row["weights_mb"] > 4
        assert row["peak_mb"] >= row["after_mb"] and row["load_s"] > 0 and row["cpu_s"] > 0
