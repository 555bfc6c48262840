"""`weft bench overhead` runs, and compares like with like. No timing is judged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from weft.errors import InputError, RequestError
from weft.grammar.guide import Guide
from weft_bench.cli import app, every
from weft_bench.engine import overhead
from weft_bench.engine.breakdown import SHOWN
from weft_bench.engine.models import Bench, Shape
from weft_bench.engine.overhead import hidden_percent
from weft_bench.engine.paired import GUIDE, SIMULATED, Setting, Side, ratio, take_turns

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
        assert (
            0 < row["ratio"] < 50 and 0.02 < row["control"] < 50
        )  # of eight iterations on a machine that may be busy
        assert row["simulated"] is (row["drafts"] > 0)
    assert "simulated" in report.summary["tokens_per_iteration"]
    for kind, tasks in (("without", {"fetch"}), ("with", {"fetch", "commit", "extend_through(3)"})):
        events = json.loads((tmp_path / f"overhead-trace-{kind}-drafts.json").read_text())["traceEvents"]
        names = Counter(event["name"] for event in events)
        assert names["unguided x 1"] == names["guided x 1"] == SHOWN
        assert names["target_forward: embed"] == 2 * SHOWN  # of the same engine
        assert all(names[f"weft.guided.{task}"] == SHOWN for task in tasks)
        by_task = {row["task"]: row for row in report.summary[f"worst_{kind}_drafts_by_task"]}
        for task in tasks:
            row = by_task[f"weft.guided.{task}"]
            assert row["unguided_us"] == 0 < row["guided_us"]
        assert by_task["target_forward"]["unguided_us"] > 0


def test_a_side_that_leaves_gives_its_engine_to_another() -> None:
    bench = Bench.random("cpu", SMALL)
    plain = Side(Setting(bench, 2, 3), None)
    guided = Side(Setting(bench, 2, 3), GUIDE, engine=plain.engine)
    for side in (plain, guided, plain):
        side.block(3)
        assert len(plain.engine.running) == 2 and side.is_whole
        side.leave()
        assert not plain.engine.has_work
    assert (len(plain.seconds), len(guided.seconds)) == (6, 3)
    assert sum(guided.grammar_seconds) > 0 == sum(plain.grammar_seconds)
    plain.engine.close()
    bench.close()


def test_ratios_are_medians_over_turns_whatever_drifts_between_them() -> None:
    turns = [[1.0, 2.0, 1.0], [10.0, 20.0, 10.0], [100.0, 200.0, 100.0], [5.0, 1.0, 5.0]]
    assert ratio(turns, 0, 1) == 0.5 and ratio(turns, 0, 2) == 1.0


def test_sides_begin_anew_together() -> None:
    """What is compared has texts of one length, though one side's requests end before another's."""
    bench = Bench.random("cpu", SMALL)
    short = Side(Setting(bench, 2, 0), Guide.choice(["a b c d e f g", "b c d e f g h"]))
    long = Side(Setting(bench, 2, 0), None)
    turns = take_turns((long, short), 24)
    assert len(turns) >= 12 and all(len(seconds) == 2 for seconds in turns)
    for side in (short, long):  # turns that an end cut off are in no figure
        kept = (side.seconds, side.grammar_seconds, side.contexts, side.tokens)
        assert [len(figures) for figures in kept] == [2 * len(turns)] * 4
    assert max(long.contexts) <= max(short.contexts) + 1 < 8 + 16
    assert long.context == pytest.approx(short.context, abs=1)
    for side in (short, long):
        side.engine.close()
    bench.close()


def test_random_model_of_a_given_shape() -> None:
    report = overhead.run("cpu", shape=SMALL, batches=[2], iterations=8)
    assert [row["model"] for row in report.rows] == ["random 2x64"] * 2
    assert [row["tokens_guided"] for row in report.rows] == [pytest.approx(SIMULATED, abs=0.2), 1.0]


def test_requests_that_end_are_replaced_and_the_batch_stays_whole() -> None:
    bench = Bench.random("cpu", SMALL)
    side = Side(Setting(bench, 2, 0), Guide.choice(["a b c d e f g", "b c d e f g h"]))
    side.block(12)
    side.block(12)
    assert 0 < len(side.seconds) < 24
    assert side.tokens_per_iteration == 1.0
    side.engine.close()
    bench.close()


def test_a_request_that_fails_is_not_timed() -> None:
    bench = Bench.random("cpu", SMALL)
    side = Side(Setting(bench, 1, 0), None)
    side.fill()
    with torch.inference_mode():
        side.engine.parts.model.embedding.fill_(float("nan"))
    with pytest.raises(RequestError, match="NaN"):
        side.block(4)
    side.engine.close()
    bench.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shape", "small", "--layers", "2"], "--shape and --layers"),
        (["--shape", "small", "--hidden", "64"], "--shape and --hidden"),
        (["--shape", "small", "--vocab", "2048"], "--shape and --vocab"),
        (["--shape", "small", "--model", "here"], "--shape and --model"),
        (["--model", "here", "--layers", "2"], "--model and --layers"),
        (["--hidden", "64"], "give its --layers"),
    ],
)
def test_options_of_which_one_would_drop_the_other(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["overhead", *options])
    assert isinstance(result.exception, InputError) and message in str(result.exception)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_leaves_out_on_a_gpu_what_the_host_does_alone(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Which benchmarks are run, with which arguments; they themselves are tested each by itself."""
    called: dict[str, Sequence[str]] = {}

    def run(command: Sequence[str], name: str, out: Path | None, seconds: float | None) -> str | None:
        called[name] = command
        assert (out, seconds) == (tmp_path, 7.0) and command[0] == name
        return "it took more than 7 s" if name == "mask" else None

    monkeypatch.setattr("weft_bench.children.run_benchmark", run)
    monkeypatch.setattr("weft.runtime.get", lambda name: SimpleNamespace(device=torch.device(name)))
    options = ["all", "--device", device, "--out", str(tmp_path), "--time-limit", "7"]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 1 and "mask: it took more than 7 s" in result.output
    left_out = set(every.HOST_ONLY) if device == "cuda" else set()
    assert set(called) == set(every.BENCHES) - left_out  # those after the one that failed, too
    assert all(name in result.output for name in left_out)
    assert called["overhead"] == ["overhead", "--device", device, "--out", str(tmp_path)]
    assert "--device" not in called.get("grammar", ())


def test_the_guide_takes_what_comes_for_long() -> None:
    assert "field_63" in str(GUIDE)
