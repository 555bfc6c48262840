"""What a benchmark leaves that fails, stalls or is ended: the rows before, and what failed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from weft.errors import InputError
from weft_bench import cli
from weft_bench.children import run_benchmark
from weft_bench.engine import step
from weft_bench.report import Report
from weft_bench.rows import Rows, keeping
from weft_bench.runtime import hostfunc


def written(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def test_rows_are_written_as_they_come(tmp_path: Path) -> None:
    with keeping(tmp_path):
        rows = Rows("some")
        with rows.trying(batch=1):
            assert written(tmp_path, "some")["summary"] == {"unfinished": True, "measuring": {"batch": "1"}}
            rows.append({"batch": 1, "us": 2.5})
        assert written(tmp_path, "some")["rows"] == [{"batch": 1, "us": 2.5}]
        with rows.trying(batch=2):
            raise RuntimeError("an illegal memory access")
        with rows.trying(batch=4):
            rows.append({"batch": 4, "us": 3.0})
    so_far = written(tmp_path, "some")
    assert [row["batch"] for row in so_far["rows"]] == [1, 4] and so_far["summary"]["unfinished"]
    assert so_far["failures"] == [{"batch": "2", "error": "RuntimeError: an illegal memory access"}]
    report = rows.report({"device": "cpu"})
    assert report.failures == so_far["failures"] and report.summary == {"device": "cpu"}
    assert list(tmp_path.iterdir()) == [tmp_path / "some.json"]


def test_wrong_options_are_no_failure_of_a_row() -> None:
    rows = Rows("some")
    with pytest.raises(InputError, match="no such model"), rows.trying(batch=1):
        raise InputError("no such model")
    assert rows.failures == []


def test_a_report_shows_what_failed_beside_unequal_rows() -> None:
    out = io.StringIO()
    failures = [{"way": "other", "error": "AttributeError: [renamed]"}]
    Report("mask", [{"a": 1, "b": 2}, {"a": 3}], failures=failures).show(Console(file=out, width=80))
    Report("none", [], failures=failures).show(Console(file=out, width=80))
    assert out.getvalue().count("failed: way other: AttributeError: [renamed]") == 2
    assert "│ 3 │" in out.getvalue()


@pytest.mark.slow
def test_a_case_of_step_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(bench: object, shape: str, batch: int, drafts: int, *_: object) -> dict[str, Any]:
        if batch == 2:
            raise RuntimeError("out of memory")
        return {"batch": batch, "drafts": drafts, "simulated": False}

    monkeypatch.setattr(step, "measure", measure)
    options = ["step", "--device", "cpu", "--max-batch", "4", "--out", str(tmp_path)]
    result = CliRunner().invoke(cli.app, options)
    assert result.exit_code == 1 and "RuntimeError: out of memory" in result.output
    found = written(tmp_path, "step")
    assert [(row["drafts"], row["batch"]) for row in found["rows"]] == [(0, 1), (0, 4), (3, 1), (3, 4)]
    assert [failure["batch"] for failure in found["failures"]] == ["2", "2"]
    assert "unfinished" not in found["summary"]


def test_another_cuda_core_is_a_failure_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnCuda:
        """The CPU's runtime under CUDA's name."""

        def __init__(self) -> None:
            from weft.runtime import CpuRuntime

            self.inner = CpuRuntime()
            self.device = type("Device", (), {"type": "cuda"})()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    def renamed(launches: int, repeat: int) -> list[dict[str, Any]]:
        raise AttributeError("'GraphBuilder' object has no attribute 'callback'")

    monkeypatch.setattr(hostfunc, "get", lambda device: OnCuda())
    monkeypatch.setattr(hostfunc, "cuda_core", renamed)
    report = hostfunc.run("cuda", launches=5, repeat=2)
    assert len(report.rows) == 5
    assert [failure["what"] for failure in report.failures] == ["cuda.core"]


STALLS = """
import sys, time
from pathlib import Path
from weft_bench.rows import Rows, keeping
with keeping(Path(sys.argv[1]), 0.5):
    rows = Rows("stalled")
    with rows.trying(batch=1):
        rows.append({"batch": 1})
    with rows.trying(batch=2):
        time.sleep(600)
"""


@pytest.mark.slow
def test_a_stall_ends_with_its_stacks_and_what_was_measured(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STALLS, str(tmp_path)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 1 and "Timeout" in ran.stderr and 'File "<string>", line 10' in ran.stderr
    found = written(tmp_path, "stalled")
    assert found["rows"] == [{"batch": 1}] and found["summary"]["measuring"] == {"batch": "2"}


def test_a_benchmark_that_takes_too_long_is_said_to_have(tmp_path: Path) -> None:
    Report("replay", [{"us": 1.0}], {"unfinished": True, "measuring": {"batch": "2"}}).write(tmp_path)
    assert run_benchmark(["replay"], "replay", tmp_path, 0.01) == "it took more than 0.01 s"
    found = written(tmp_path, "replay")
    assert found["rows"] == [{"us": 1.0}]
    assert found["failures"] == [{"batch": "2", "error": "it took more than 0.01 s"}]
    assert run_benchmark(["mask"], "mask", tmp_path, 0.01) is not None  # which had not begun
    assert written(tmp_path, "mask")["failures"] == [{"error": "it took more than 0.01 s"}]


@pytest.mark.slow
def test_a_benchmarks_exit_is_told(tmp_path: Path) -> None:
    assert run_benchmark(["nothing"], "nothing", tmp_path, 120) == "its process ended with 2"
    assert written(tmp_path, "nothing")["failures"] == [{"error": "its process ended with 2"}]
