"""The examples run, and say what they promise."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that an example prints."""
    monkeypatch.setattr("sys.argv", [name, "--device", "cpu"])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_basic(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run("executor_basic.py", monkeypatch, capsys)
    assert sorted(line[0] for line in lines) == ["0", "1", "2"]
    assert all(re.match(r"\d (END_ID|LENGTH): '", line) or '"' in line for line in lines)


def test_streaming(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run("executor_streaming.py", monkeypatch, capsys)
    assert re.fullmatch(r"\d+ iterations, [\d.]+ ms", lines[-1])
    assert lines[-2].rpartition("|")[2] in ("END_ID", "LENGTH")
    assert "\n".join(lines).count("|") > 3


def test_guided(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    person, date, choice = run("executor_guided.py", monkeypatch, capsys)
    assert json.loads(person).keys() == {"name", "age"}
    assert re.fullmatch(r"\d{4}-\d{2}", date)
    assert choice in ("yes", "no")


def test_cancelled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run("executor_cancelled.py", monkeypatch, capsys)
    assert lines == ["request 1: CANCELLED", "request 2: TIMED_OUT"]


def test_async(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run("executor_async.py", monkeypatch, capsys)
    assert [int(line.split()[0]) for line in lines] == [8, 16, 24]


def test_logits_processor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plain, processed = run("executor_logits_processor.py", monkeypatch, capsys)
    assert not plain.endswith(", 0 repeated")
    assert processed.endswith(", 0 repeated")
