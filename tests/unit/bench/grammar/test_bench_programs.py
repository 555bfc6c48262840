"""The benchmark of programs runs on small sizes and reports what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import programs
from support.wasm.digits import forcing
from weft.config import package_model_path
from weft.errors import InputError
from weft.grammar import Vocabulary


def test_programs_stand_beside_native_guides(tmp_path: Path) -> None:
    report = programs.run(vocabs=(600,), steps=3, repeat=1)
    assert [row["guide"] for row in report.rows] == ["program, idle", "program", "xgrammar", "llguidance"]
    for row in report.rows:
        is_program = row["guide"].startswith("program")
        assert (row["undo_kib"] >= 4) == is_program  # a step changes a page at least
        assert all(value > 0 for key, value in row.items() if key.endswith("_us"))
        assert row["accept_p50_us"] <= row["accept_p99_us"]
    assert json.loads(report.write(tmp_path).read_text())["summary"]["program"] == "wasm_digits.wat"


def test_the_example_is_found() -> None:
    assert programs.example().parent.name == "examples" and programs.example().is_file()


def test_any_program_is_followed_to_its_end(tmp_path: Path) -> None:
    """As far as its own masks go, which allow nothing but these texts."""
    fixed = tmp_path / "fixed.wat"
    fixed.write_bytes(forcing([Vocabulary.from_huggingface(package_model_path()).tokens.index(b"q")]))
    report = programs.run(vocabs=(0,), steps=4, repeat=1, program=fixed, arg="2")
    assert [row["guide"] for row in report.rows] == ["program, idle", "program"]
    assert all(row["accept_p50_us"] > 0 for row in report.rows)


def test_a_program_that_writes_nothing() -> None:
    with pytest.raises(InputError, match="allows no text at its start; give it an argument"):
        programs.run(vocabs=(600,), steps=3, repeat=1, program=programs.example(), arg="0")


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no mine\.wat here; give the path of a program"):
        programs.run(program=tmp_path / "mine.wat")
