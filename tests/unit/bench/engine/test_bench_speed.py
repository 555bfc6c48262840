"""`weft bench speed`: its ratios, and a small run. No timing is judged."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from weft_bench.engine import speed
from weft_bench.engine.drafters import DRAFTERS
from weft_bench.engine.speed import Racer, median_ratio, summary, table

LLM: Any = None


def racer(name: str, graphs: Any, seconds: list[float], answer: int = 1) -> Racer:
    """Rounds of 100 tokens each."""
    decode = [s / 2 for s in seconds]
    return Racer(name, 3, graphs, LLM, [100] * len(seconds), seconds, decode, {0: [answer]})


RACERS = [
    racer("none", "one", [1.0, 2.0, 4.0]),
    racer("none", "split", [1.0, 4.0, 4.0]),
    racer("fast", "one", [0.5, 0.5, 1.0]),
    racer("fast", "split", [0.6, 1.0, 2.0], answer=2),
    racer("other", "one", [2.0, 4.0, 8.0]),
]


def test_ratios_are_medians_of_the_ratios_of_rounds() -> None:
    assert median_ratio([1.0, 9.0, 4.0], [1.0, 3.0, 2.0]) == 2.0
    rows = table(RACERS)
    assert [row["drafter"] for row in rows] == ["none", "fast", "other"]
    assert [row["over_none"] for row in rows] == [1.0, 4.0, 0.5]
    assert [row["one_graph_over_split"] for row in rows] == [1.0, 2.0, ""]
    assert rows[0]["tokens_per_s"] == 50 and rows[0]["decode_tokens_per_s"] == 100


def test_summary_names_the_best_and_counts_other_answers() -> None:
    found = summary(table(RACERS), RACERS)
    assert found == {
        "best": "fast, 4.0 times none",
        "least_one_graph_over_split": 1.0,
        "answers_that_differ": 1,
    }


@pytest.mark.slow
def test_small_run() -> None:
    variants = [variant for variant in DRAFTERS if variant.name in ("EAGLE3", "forced")]
    report = speed.run("cpu", prompts=2, rounds=1, num_drafts=(2,), variants=variants)
    for form in speed.FORMS:
        rows = [row for row in report.rows if row["guide"] == form]
        assert [(row["drafter"], row["K"], row["one_graph_over_split"] != "") for row in rows] == [
            ("none", 0, True),
            ("EAGLE3", 2, True),
            ("EAGLE3, guide_drafts=False", 2, False),
            ('EAGLE3, guide_drafts="auto"', 2, False),
            ("forced", 2, True),
        ]
        assert report.summary[form]["answers_that_differ"] == 0
        assert all(row["over_none"] > 0 for row in rows)


@pytest.mark.parametrize("name", ["acceptance", "overhead", "speed"])
def test_commands_name_their_options(name: str) -> None:
    from typer.testing import CliRunner

    from weft_bench.cli import app

    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert shown.exit_code == 0
    for option in ("--device", "--out", "--model"):
        assert option in shown.output


SCRIPTS = {
    "matchers": ("[source]", "--vocab", "--texts", "--repeat"),
    "workers": (),
    "programs": ("[program]", "--arg", "--vocabs", "--steps", "--repeat"),
    "rejection": ("--model", "--prompts", "--device"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_name_their_options(name: str) -> None:
    import typer
    from typer.testing import CliRunner

    app = typer.Typer()
    app.command()(import_module(name).main)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert shown.exit_code == 0
    for option in (*SCRIPTS[name], "--out"):
        assert option in shown.output
