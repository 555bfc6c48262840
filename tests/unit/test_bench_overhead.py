"""`weft bench overhead` runs, and compares like with like. No timing is judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from weft.bench import overhead
from weft.bench.engines import Bench, Shape
from weft.bench.overhead import GUIDE, SIMULATED, Side, hidden_percent
from weft.errors import RequestError
from weft.grammar.guide import Guide

SMALL = Shape(layers=2, hidden=64, vocab=1024)


def test_hidden_share_is_within_the_grammars_work() -> None:
    assert [hidden_percent(exposed, 50.0) for exposed in (0.0, 25.0, 50.0, 80.0, -5.0)] == [
        100,
        50,
        0,
        0,
        100,
    ]
    assert hidden_percent(3.0, 0.0) == 0


def test_small_run_commits_the_same_on_both_sides(tmp_path: Path) -> None:
    report = overhead.run("cpu", batches=[1, 3], iterations=8, out=tmp_path, with_random=False)
    assert [(row["drafts"], row["batch"]) for row in report.rows] == [
        (3, 1),
        (3, 3),
        (0, 1),
        (0, 3),
    ]
    for row in report.rows:
        expected = SIMULATED if row["drafts"] else 1
        assert row["tokens_guided"] == pytest.approx(expected, abs=0.2)
        assert row["tokens_unguided"] == pytest.approx(expected, abs=0.2)
        assert row["grammar_us"] > 0
        assert row["ratio"] == pytest.approx(row["unguided_us"] / row["guided_us"], abs=0.01)
    assert "simulated" in report.summary["tokens_per_iteration"]
    names = {
        event["name"] for event in json.loads((tmp_path / "overhead-trace.json").read_text())["traceEvents"]
    }
    assert any("target_forward" in name for name in names)
    assert {"weft.guided.fetch", "weft.guided.commit"} <= names


def test_random_model_of_a_given_shape() -> None:
    report = overhead.run("cpu", shape=SMALL, batches=[2], iterations=8)
    assert [row["model"] for row in report.rows] == ["random 2x64"] * 2
    assert [row["tokens_guided"] for row in report.rows] == [pytest.approx(SIMULATED, abs=0.2), 1.0]


def test_requests_that_end_are_replaced_and_the_batch_stays_whole() -> None:
    bench = Bench.random("cpu", SMALL)
    side = Side(bench, 2, 0, Guide.choice(["a b c d e f g", "b c d e f g h"]))
    side.block(12)
    side.block(12)
    assert 0 < len(side.seconds) < 24
    assert side.tokens_per_iteration == 1.0
    side.engine.close()
    bench.close()


def test_a_request_that_fails_is_not_timed() -> None:
    bench = Bench.random("cpu", SMALL)
    side = Side(bench, 1, 0, None)
    side.fill()
    side.engine.parts.model.logits = lambda hidden: torch.full((*hidden.shape[:-1], 1024), float("nan"))  # type: ignore[method-assign]
    with pytest.raises(RequestError, match="NaN"):
        side.block(4)
    side.engine.close()
    bench.close()


def test_the_guide_takes_what_comes_for_long() -> None:
    assert "field_63" in str(GUIDE)
