"""The sides whose packages weft has: they answer the same, and a whole run makes a report."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from peers import lineup as entrants
from peers.checkpoints import SMOLLM2, TINY, checkpoint
from peers.environments import Environments
from peers.group import Plan
from peers.judge import tally
from peers.lineup import lineup
from peers.prompts import has_list, of_round, pool
from peers.protocol import Answers, Config, Request, Side
from peers.race import Choice, race
from weft_bench.rows import keeping


def config(batch: int, drafter: str = "none") -> Config:
    return Config(str(checkpoint(TINY, Path()).directory), "float32", batch, 1, 768, drafter, 3)


def answers(side: Side, request: Request) -> Answers:
    side.prepare(request.prompts)
    return side.answer(request)


@pytest.mark.parametrize("guided", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_weft_and_transformers_answer_the_same(guided: bool) -> None:
    from peers.sides.transformers import Transformers
    from peers.sides.weft import Weft

    request = Request(of_round(pool(checkpoint(TINY, Path())), 0, 5, guided), 120, exact=not guided)
    found = [
        answers(side, request)
        for side in (Weft(config(2)), Weft(config(2, "forced+ngram")), Transformers(config(3)))
    ]
    texts = [[(a.text, a.num_tokens, a.is_whole) for a in each.answers] for each in found]
    assert texts[0] == texts[1] == texts[2]
    assert all(a.decode_s > 0 for each in found for a in each.answers)
    counted = tally(request.prompts, found[0].answers)
    assert counted == {"answers": 5, "cut": 0 if guided else 5, "invalid": 0}


def test_rounds_go_through_all_prompts() -> None:
    prompts = pool(checkpoint(TINY, Path()))
    assert of_round(prompts, 1, 40, True) == prompts[40:] + prompts[:16]
    assert all(prompt.schema is None for prompt in of_round(prompts, 0, 3, False))


def test_lists_are_found_at_any_depth() -> None:
    inner = {"type": "object", "properties": {"a": {"type": "array"}}}
    assert has_list(inner) and has_list(
        {"type": "object", "properties": {"b": {"type": "string"}, "c": inner}}
    )
    assert not has_list({"type": "object", "properties": {"b": {"type": "string"}}})


def test_the_lineup_has_every_engine_and_heads_where_they_are() -> None:
    tiny, smol = (lineup(name, entrants.ENGINES) for name in (TINY, SMOLLM2))
    assert {e.engine for e in smol} == set(entrants.ENGINES) and len(set(tiny)) == len(tiny)
    assert {e.drafter for e in tiny if e.engine == "weft"} > {"none", "eagle3", "mtp", "draft_model", "ngram"}
    assert {e.drafter for e in smol} == {"none", "ngram", "forced+ngram"}
    assert [e.name for e in lineup(TINY, ["vLLM"], drafts=False)] == ["vLLM"]


@pytest.mark.slow
def test_a_run_makes_a_report_and_a_figure(tmp_path: Path) -> None:
    """Of two engines; of the third there is no Python, which is a failure of its own."""
    pytest.importorskip("matplotlib", reason="the figure needs matplotlib")
    missing = Path("/nonexistent/python")
    environments = Environments(missing, missing, missing, tmp_path / "cache", 1, 120.0)
    plan = Plan(rounds=1, waves=1, least_prompts=2, threads=1, free_tokens=0, options={})
    choice = Choice([TINY], ["weft", "transformers", "vLLM"], [16], [2], [True], drafts=False)
    with keeping(tmp_path):
        race(choice, plan, environments, Console(file=io.StringIO()), tmp_path)
    report = json.loads((tmp_path / "peers.json").read_text())
    assert [(row["engine"], row["invalid"], row["answers"]) for row in report["rows"]] == [
        ("weft", 0, 4),
        ("transformers", 0, 4),
    ]
    assert report["summary"]["against_peers"][0]["without_drafts"] > 0
    assert "weft" in report["summary"]["sides"] and {"machine", "commit", "versions"} <= report.keys()
    assert [failure["side"] for failure in report["failures"]] == ["vLLM"]
    assert (tmp_path / "peers.svg").exists()
