"""`busy.py`: its processes compute only when they should, and a small run. No timing is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from busy import Busy, row, run
from weft.errors import InputError


def states(busy: Busy) -> set[str]:
    return {
        Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2][0] for process in busy.processes
    }


def test_processes_compute_only_in_busy_turns() -> None:
    busy = Busy()
    try:
        with busy.running(False):
            assert states(busy) == {"T"}
        with busy.running(True):
            assert "T" not in states(busy)
        assert states(busy) == {"T"}
    finally:
        busy.close()
    assert all(process.returncode for process in busy.processes)


def test_a_ratio_is_of_both_turns_of_a_round() -> None:
    rounds = [{"quiet": [10.0, 30.0], "busy": [5.0, 5.0]}, {"quiet": [10.0, 10.0], "busy": [9.0, 9.0]}]
    found = row("eagle3", 3, rounds)
    assert (found["ratio"], found["least"], found["most"]) == (0.575, 0.25, 0.9)
    assert (found["quiet_tokens_per_s"], found["busy_tokens_per_s"]) == (15.0, 7.0)


def test_small_run() -> None:
    report = run("weft-tiny", "none, eagle3", 2, prompts=1, max_tokens=4, rounds=1)
    assert [(each["drafter"], each["K"]) for each in report.rows] == [("none", 0), ("eagle3", 2)]
    assert all(each["busy_tokens_per_s"] > 0 for each in report.rows)
    with pytest.raises(InputError, match="forced\\+ngram"):
        run("weft-tiny", "guess", 2, prompts=1, max_tokens=4, rounds=1)
