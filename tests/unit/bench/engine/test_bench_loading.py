"""`loading.py`: a small run."""

from __future__ import annotations

from pathlib import Path

import pytest

import loading
from weft import package_model_path
from weft.models.gguf.writing import directory_to_gguf


@pytest.mark.parametrize("is_cold", [False, True])
def test_memory_and_time_of_loading_are_measured(is_cold: bool) -> None:
    report = loading.run("weft-tiny", "auto,float32", 1, is_cold)
    assert [row["dtype"] for row in report.rows] == ["auto", "float32"]
    for row in report.rows:
        assert row["model"] == "weft-tiny" and row["weights_mb"] > 4
        assert row["peak_mb"] >= row["after_mb"] and row["load_s"] > 0 and row["cpu_s"] > 0


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_quantised_file_has_a_report_of_its_own(
    is_cold: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    file = directory_to_gguf(package_model_path(), tmp_path / "tiny.gguf", "Q8_0")
    report = loading.run(str(file), "auto", 1, is_cold)
    assert report.name == ("loading-quantised-cold" if is_cold else "loading-quantised")
    (row,) = report.rows
    assert row["model"] == "tiny" and row["file_mb"] == file.stat().st_size / 1e6
    assert row["file_ratio"] == row["peak_mb"] / row["file_mb"]
