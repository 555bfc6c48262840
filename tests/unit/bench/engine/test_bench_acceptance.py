"""`weft bench acceptance`: its table, its labels, and a small run over every drafter."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.config import Speculation
from weft.core import Output, OutputStats
from weft_bench.engine import acceptance
from weft_bench.engine.drafters import VARIANTS, Variant
from weft_bench.heldout import PromptSet, acceptance_length, count_differing

DRAFT_MODEL = next(variant for variant in VARIANTS if variant.name == "draft model unguided")


def output(tokens: list[int], iterations: int = 0, drafted_tokens: int = 0) -> Output:
    stats = OutputStats(
        iterations=iterations, drafted_iterations=max(0, iterations - 1), drafted_tokens=drafted_tokens
    )
    return Output([], tokens, stats=stats)


def test_acceptance_length_weighs_iterations_not_requests() -> None:
    assert acceptance_length([output([], 2, 4), output([], 10, 9)]) == pytest.approx(1.3)
    assert acceptance_length([output([1, 2])]) == 1.0


def test_differing_answers_are_counted() -> None:
    assert count_differing([output([1]), output([2, 3])], [output([1]), output([2, 4])]) == 1


def test_table_has_the_published_columns_first_and_no_drafts_last() -> None:
    names = [variant.name for variant in VARIANTS]
    assert names[:3] == ["EAGLE3", "EAGLE3 unguided", "n-gram"]
    lengths = {("a", k, name): k + i / 10 for k in (1, 2) for i, name in enumerate(names)}
    rows = acceptance.table([PromptSet("a", [], [])], lengths, 2, names)
    assert [row["drafter"] for row in rows] == [*names, "none"]
    assert rows[1] == {"prompts": "a", "drafter": "EAGLE3 unguided", "K=1": 1.1, "K=2": 2.1}
    assert rows[-1] == {"prompts": "a", "drafter": "none", "K=1": 1.0, "K=2": 1.0}


def test_every_drafter_is_a_variant_with_guided_drafts_and_without() -> None:
    settings = [variant.speculation(4) for variant in VARIANTS]
    assert all(s.num_draft_tokens == 4 for s in settings)
    both = {s.name for s in settings if s.guide_drafts is True} & {
        s.name for s in settings if s.guide_drafts is False
    }
    assert both == {"eagle3", "mtp", "draft_model", "ngram"}
    assert {"forced", "forced+eagle3"} <= {s.name for s in settings}


def test_small_run(tmp_path: Path) -> None:
    variants = [Variant("EAGLE3", Speculation.eagle3), DRAFT_MODEL]
    report = acceptance.run("cpu", prompts=2, max_k=2, variants=variants)
    assert [(row["prompts"], row["drafter"]) for row in report.rows] == [
        (prompts, drafter)
        for prompts in ("extraction", "schema only")
        for drafter in ("EAGLE3", "draft model unguided", "none")
    ]
    assert all(1 < row["K=1"] <= 2 and 1 < row["K=2"] <= 3 for row in report.rows if row["drafter"] != "none")
    assert report.summary["answers"] == 16
    assert report.summary["answers_that_differ"] == 0
    assert "simulated" not in report.summary
    assert report.write(tmp_path).name == "acceptance.json"
    pytest.importorskip("matplotlib")
    acceptance.plot(report, tmp_path / "acceptance.svg")
    assert "imulated" not in (tmp_path / "acceptance.svg").read_text()


def test_simulated_figures_say_so(tmp_path: Path) -> None:
    report = acceptance.run(
        "cpu", prompts=1, max_k=3, simulate=2.0, variants=[Variant("EAGLE3", Speculation.eagle3)]
    )
    assert report.name == "acceptance-simulated"
    assert "simulated" in report.summary["simulated"]
    for row in report.rows:
        if row["drafter"] == "EAGLE3":
            assert row["K=3"] == pytest.approx(2.0, abs=0.15)
    pytest.importorskip("matplotlib")
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none"}):
        acceptance.plot(report, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert "simulated acceptance length" in text
    assert "simulated tokens per iteration" in text


def test_each_kind_of_run_has_a_file_of_its_own() -> None:
    names = [acceptance.report_name(t, s) for t in (0.0, 1.0) for s in (None, 2.0)]
    assert names == [
        "acceptance",
        "acceptance-simulated",
        "acceptance-temperature-1",
        "acceptance-simulated-temperature-1",
    ]
