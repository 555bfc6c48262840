"""`generic.py`: a small run."""

from __future__ import annotations

import generic


def test_both_ways_are_measured() -> None:
    report = generic.run("weft-tiny", 1)
    assert [row["batch"] for row in report.rows] == list(generic.BATCHES)
    assert all(row["weft"] > 0 and row["transformers"] > 0 for row in report.rows)
