"""The tables of ratios, the figure's lines, and the judge."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from peers.checkpoints import SMOLLM2, TINY
from peers.judge import is_valid, tally
from peers.kept import kept_rows, without
from peers.plot import draw_all, draw_one, series
from peers.protocol import Answer, Prompt
from peers.ratios import against_peers, ratio, targets
from weft_bench.report import Report

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def row(engine: str, speeds: list[float], drafter: str = "none", **group: Any) -> dict[str, Any]:
    return {
        "checkpoint": TINY,
        "dtype": "float32",
        "batch": 1,
        "guided": True,
        "engine": engine,
        "drafter": drafter,
        "K": 0 if drafter == "none" else 4,
        "rounds_tokens_per_s": speeds,
        "rounds_user_tokens_per_s": speeds,
        **group,
    }


def test_one_group_is_compared_round_by_round_two_by_medians() -> None:
    one, other = row("weft", [30.0, 2.0, 1.0]), row("vLLM", [10.0, 1.0, 1.0])
    assert ratio(one, other) == 2.0
    assert ratio(one, {**other, "dtype": "float16"}) == 2.0
    assert ratio(row("weft", [8.0]), row("weft", [2.0, 4.0, 4.0], dtype="float16")) == 2.0
    assert ratio(one, None) is ratio(None, other) is None


def test_each_peer_is_compared_without_drafts_and_best_with_best() -> None:
    rows = [
        row("weft", [10.0]),
        row("weft", [30.0], "eagle3"),
        row("llama.cpp", [20.0]),
        row("llama.cpp", [15.0], "ngram"),
        row("transformers", [5.0], batch=8),
    ]
    (first, second) = against_peers(rows)
    assert (first["weft_over"], first["without_drafts"], first["best_over_best"]) == ("llama.cpp", 0.5, 1.5)
    assert (first["best_of_weft"], first["best_of_peer"]) == ("eagle3 4", "none")
    assert second["batch"] == 8 and second["without_drafts"] is None


def test_targets_are_those_that_were_measured() -> None:
    rows = [
        row("weft", [14.0], dtype="float16"),
        row("llama.cpp", [10.0], dtype="float16"),
        row("llama.cpp", [20.0], "draft_model", dtype="float16"),
        *(
            row("weft", [s], checkpoint=SMOLLM2, guided=False, dtype=d)
            for d, s in (("float32", 2.0), ("bfloat16", 3.2))
        ),
        *(
            row(e, [s], checkpoint=SMOLLM2, batch=8)
            for e, s in (("weft", 3.0), ("vLLM", 1.0), ("llama.cpp", 2.0))
        ),
    ]
    found = {entry["what"]: (entry["ratio"], entry["reached"]) for entry in targets(rows)}
    assert found == {
        f"{TINY}, float16, guided, batch 1: weft ÷ llama.cpp, without drafts": (1.4, "yes"),
        f"{TINY}, float16, guided, batch 1: best ÷ best": (0.7, "no"),
        f"{SMOLLM2}, batch 1, plain: weft in bfloat16 ÷ float32": (1.6, "yes"),
        f"{SMOLLM2}, float32, batch 8, guided: best ÷ the better of vLLM and llama.cpp": (1.5, "yes"),
    }


def test_the_figure_has_a_line_for_each_engine_with_and_without_drafts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the figure needs matplotlib")
    rows = [
        row("weft", [10.0 * batch], drafter, batch=batch, rounds_user_tokens_per_s=[10.0])
        for batch in (8, 1)
        for drafter in ("none", "eagle3")
    ]
    rows += [row("vLLM", [1.0, 3.0, 2.0]), row("vLLM", [1.0], checkpoint=SMOLLM2, guided=False)]
    lines = series([each for each in rows if each["checkpoint"] == TINY])
    assert lines == {
        "weft": [(1, 10.0, 10.0), (8, 10.0, 80.0)],
        "weft, drafts": [(1, 10.0, 10.0), (8, 10.0, 80.0)],
        "vLLM": [(1, 2.0, 2.0)],
    }
    draw_all(rows, tmp_path / "all.svg")
    assert "weft, drafts" in (tmp_path / "all.svg").read_text()


def test_the_figure_of_the_readme_names_each_line_and_each_batch(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the figure needs matplotlib")
    smollm2 = {"checkpoint": SMOLLM2, "dtype": "bfloat16"}
    rows = [
        row("weft", [10.0], drafter, batch=batch, rounds_user_tokens_per_s=[5.0], **smollm2)
        for drafter in ("none", "eagle3")
        for batch in (1, 8)
    ]
    rows += [row("vLLM", [1.0], checkpoint=SMOLLM2, guided=False)]  # of another panel
    draw_one(rows, tmp_path / "peers.svg")
    svg = (tmp_path / "peers.svg").read_text()
    texts = re.findall("<!-- (.+?) -->", svg)
    assert {"weft", "weft, drafts", f"{SMOLLM2}, bfloat16, under JSON schemas"} < set(texts)
    assert "vLLM" not in texts and texts.count("8") == 2
    names = re.findall(r"<!-- weft(?:, drafts)? -->\s*<g [^>]*?translate\([\d.]+ ([\d.]+)\)", svg)
    assert (
        len(names) == 2 and abs(float(names[0]) - float(names[1])) >= 16
    )  # although the points are the same


def test_rows_of_another_run_are_kept_where_they_are_comparable(tmp_path: Path) -> None:
    first = [row("weft", [1.0]), row("weft", [2.0], batch=8)]
    file = Report("peers", first).write(tmp_path)
    assert kept_rows(file) == first and kept_rows(tmp_path / "none.json") == []
    group = {"checkpoint": TINY, "dtype": "float32", "batch": 8}
    assert without(first, group) == first[:1]
    file.write_text(json.dumps({**json.loads(file.read_text()), "commit": "another"}))
    with pytest.raises(ValueError, match="of the commit another"):
        kept_rows(file)


def test_answers_are_judged_by_their_schemas() -> None:
    assert is_valid('{"a": 1}', SCHEMA)
    assert not any(is_valid(text, SCHEMA) for text in ('{"a": "1"}', '{"a": 1', "", "{}"))
    prompts = [Prompt([1], SCHEMA)] * 3 + [Prompt([1])]
    texts = ['{"a": 1}', "{}", "{", "any"]
    answers = [Answer(1, text, 0.0, is_whole=text != "{") for text in texts]
    assert tally(prompts, answers) == {"answers": 4, "cut": 1, "invalid": 1}
