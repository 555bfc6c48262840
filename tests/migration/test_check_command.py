"""`python -m weft.migration`: what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from weft.migration.__main__ import main

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "wrong.py"
    path.write_text("def f(:\n")
    return path


def test_text_has_a_line_for_each_finding(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(PROGRAMS / "basic.py")
    assert main([path]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{path}:5:8: import: write: import weft.executor as trtllm"
    assert all(line.startswith(path) for line in lines)
    assert last.startswith("1 file: 1 import, ")


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(PROGRAMS / "basic.py")
    assert main([path, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["errors"] == []
    assert said["findings"][0] == {
        "file": path,
        "line": 5,
        "column": 8,
        "kind": "import",
        "name": "tensorrt_llm.bindings.executor",
        "text": "write: import weft.executor as trtllm",
    }


def test_nothing_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(PROGRAMS / "ours.py")]) == 0
    assert capsys.readouterr().out == "1 file: nothing to change\n"


def test_a_program_of_vllm_is_no_program_without_changes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "other.py"
    path.write_text("import vllm\nfrom vllm.sampling_params import StructuredOutputsParams\n")
    assert main([str(path)]) == 1
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.startswith(f"{path}:{i}:") for i, line in enumerate(lines, 1)] == [True, True]
    assert all(line.endswith("docs/from-vllm.md lists weft's names for them") for line in lines)
    assert last == "1 file: 2 elsewhere"


def test_what_cannot_be_read(capsys: pytest.CaptureFixture[str], wrong: Path, tmp_path: Path) -> None:
    """The others are read all the same."""
    binary = tmp_path / "binary.py"
    binary.write_bytes(b"\xff\xfe\x00")
    assert main([str(wrong), str(tmp_path / "none.py"), str(binary), str(PROGRAMS / "basic.py")]) == 2
    said = capsys.readouterr().out
    assert f"{wrong}:1: no Python that can be parsed" in said
    assert f"{tmp_path / 'none.py'} can't be read" in said and f"{binary} can't be read" in said
    assert "1 file: 1 import" in said
    assert main([str(wrong), "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["findings"] == [] and len(said["errors"]) == 1


@pytest.mark.slow
def test_it_is_a_program() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "weft.migration", str(PROGRAMS / "ours.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "1 file: nothing to change\n", "")


def test_nothing_of_the_program_is_run(tmp_path: Path) -> None:
    path = tmp_path / "loud.py"
    path.write_text(f"open({str(tmp_path / 'made')!r}, 'w')\nraise SystemExit(7)\n")
    assert main([str(path)]) == 0
    assert not (tmp_path / "made").exists()
