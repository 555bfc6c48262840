"""The benchmark of programs runs on small sizes and reports what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.bench import programs
from weft.errors import InputError


def test_programs_stand_beside_native_guides(tmp_path: Path) -> None:
    report = programs.run(vocabs=(600,), steps=3, repeat=1)
    assert [row["guide"] for row in report.rows] == ["program, idle", "program", "xgrammar", "llguidance"]
    for row in report.rows:
        is_program = row["guide"].startswith("program")
        assert (row["undo_kib"] >= 4) == is_program  # a step changes a page at least
        assert all(value > 0 for key, value in row.items() if key.endswith("_us"))
        assert row["accept_p50_us"] <= row["accept_p99_us"]
    assert json.loads(report.write(tmp_path).read_text())["summary"]["program"] == "wasm_digits.wat"


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"no mine\.wat here; run this in a checkout of weft, or give a program"
    ):
        programs.run(program=tmp_path / "mine.wat")
