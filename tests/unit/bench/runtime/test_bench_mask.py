"""`weft bench mask` runs, and measures what it says. No timing is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from weft_bench.runtime import mask


def test_reports_every_dtype_and_share(tmp_path: Path) -> None:
    report = mask.run("cpu", rows=2, vocab=4096, repeat=2)
    assert [(r["dtype"], r["allowed_percent"]) for r in report.rows] == [
        (dtype, percent) for dtype in ("float32", "bfloat16") for percent in (0.1, 50, 99)
    ]
    for row in report.rows:
        assert row["xgrammar_over_weft"] == pytest.approx(row["xgrammar_ms"] / row["weft_ms"])
        assert row["torch_over_weft"] == pytest.approx(row["torch_ms"] / row["weft_ms"])
    written = json.loads(report.write(tmp_path).read_text())
    assert written["summary"]["rows"] == 2
    assert written["summary"]["vocab"] == 4096
    blocking = [r["xgrammar_over_weft"] for r in report.rows if r["allowed_percent"] < 99]
    assert written["summary"]["least_xgrammar_over_weft"] == pytest.approx(min(blocking))


def test_a_wrong_result_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask, "apply_token_bitmask_", lambda logits, bitmask: logits.zero_())
    report = mask.run("cpu", rows=1, vocab=64, repeat=1)
    assert report.rows == [] and len(report.failures) == len(mask.DTYPES) * len(mask.ALLOWED)
    assert {failure["error"] for failure in report.failures} == {"AssertionError: weft masks wrongly"}


def test_another_librarys_failure_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AttributeError("renamed")

    monkeypatch.setattr(mask.xgr, "apply_token_bitmask_inplace", fail)
    report = mask.run("cpu", rows=1, vocab=64, repeat=1)
    assert len(report.rows) == len(report.failures) == len(mask.DTYPES) * len(mask.ALLOWED)
    assert report.rows[0]["torch_over_weft"] > 0 and "xgrammar_ms" not in report.rows[0]
    assert (
        report.failures[0]["way"] == "xgrammar" and report.failures[0]["error"] == "AttributeError: renamed"
    )
    assert report.summary["least_xgrammar_over_weft"] is None


def test_packs_bit_31() -> None:
    allowed = torch.zeros(1, 64, dtype=torch.bool)
    allowed[0, [31, 32]] = True
    assert mask.pack(allowed).tolist() == [[-(2**31), 1]]
