"""`adaptive=True` measures the time of iterations by number of drafts, and makes as many as pay. The tokens are the
same. In a mixture of experts, each verified token reads experts of its own, so that the time grows with the number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.engine.checkpoints import save_checkpoint, save_draft_model
from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.drafting_requests import check, references, run
from support.engine.references import Checkpoint
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.engine.scheduler.draft_lengths import MEASURED, WARM_UP

MIXTURE = {"num_local_experts": 32, "num_experts_per_tok": 1, "sliding_window": None}
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
SAMPLING = SamplingParams(max_tokens=100)
ENGINE = EngineConfig(max_batch=1, max_seq_len=256)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixture") / "model"
    save_checkpoint(path, "mixtral", **SIZES, **MIXTURE)
    save_draft_model(path / "draft")
    return path


@pytest.fixture(scope="module")
def answers(mixture: Path, prompts: list[str]) -> list[list[int]]:
    with LLM(mixture, device="cpu", engine=ENGINE) as llm:
        return [llm.generate(prompt, sampling=SAMPLING).token_ids for prompt in prompts]


def decide(
    llm: LLM, prompts: list[str], answers: list[list[int]], given: bool
) -> tuple[int, dict[int, float]]:
    """Answer prompts one after another until the engine has decided. Returns the number of drafts that it chose, and
    the seconds of an iteration by number."""
    lengths = llm.engine.scheduler.draft_lengths
    for number in range(100):
        answer = answers[number % len(answers)]
        expected: dict[str, Any] = {"given": answer} if given else {}
        output = llm.generate(prompts[number % len(prompts)], sampling=SAMPLING, **expected)
        assert output.token_ids == answer
        chosen = lengths.decision(1)
        if chosen is not None:
            return chosen, lengths.costs(1)
    raise AssertionError("no decision")


@pytest.mark.serial  # by measured times; `tests/unit/engine/scheduler/test_draft_lengths.py` moves a clock
@pytest.mark.parametrize("pays", [False, True])
def test_a_mixture_verifies_as_many_drafts_as_pay(
    mixture: Path, prompts: list[str], answers: list[list[int]], pays: bool
) -> None:
    """The target refuses a random model's drafts, and accepts the expected answer's."""
    speculation = Speculation.draft_model(num_draft_tokens=8, adaptive=True)
    if pays:
        speculation = Speculation.given(adaptive=True)
    with LLM(mixture, device="cpu", engine=ENGINE, speculation=speculation) as llm:
        chosen, costs = decide(llm, prompts, answers, given=pays)
    assert sorted(costs) == [0, 1, 2, 3, 5, 8]
    assert costs[8] > 1.5 * costs[0]
    assert costs[8] > costs[3] > costs[0]
    assert (chosen > 0) == pays


@pytest.mark.parametrize("graphs", ["one", "none"])
@pytest.mark.parametrize("drafter", ["eagle3", "random mtp chain", "ngram", "forced+eagle3"])
def test_tokens_are_those_without_speculation(
    tiny: Checkpoint, prompts: list[str], tmp_path: Path, drafter: str, graphs: Any
) -> None:
    """While numbers are tried, each follows each other, in batches that shrink."""
    speculation = DRAFTERS[drafter](save_random_drafters(tmp_path, tiny), 5)
    speculation = Speculation(
        speculation.drafters, {1: 5, 4: 3}, speculation.path, speculation.guide_drafts, adaptive=True
    )
    engine = EngineConfig(max_batch=8, max_seq_len=512, kv_cache_dtype="float32", graphs=graphs)
    expected = references(tiny, prompts)
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        for _ in range(3 * (MEASURED + WARM_UP) // 10):
            check(run(llm, prompts), expected)
        lengths = llm.engine.scheduler.draft_lengths
        assert any(len(lengths.costs(rows)) > 1 for rows in (1, 2, 4, 8))


def test_a_warm_engine_has_the_graphs_of_all_numbers(tiny: Checkpoint) -> None:
    speculation = Speculation.eagle3(num_draft_tokens=3, adaptive=True)
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=ENGINE) as llm:
        llm.warm_up()
        plans = llm.engine.graphs.plans
        assert {plan.num_drafts for plan in plans if not plan.num_context} == {0, 1, 2, 3}


def test_iterations_that_read_prompts_try_no_number(tiny: Checkpoint, prompts: list[str]) -> None:
    speculation = Speculation.ngram(num_draft_tokens=3, adaptive=True)
    engine = EngineConfig(max_batch=2, max_seq_len=512, graphs="one")
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        sampling = [SamplingParams(max_tokens=3 + 5 * (i % 7)) for i in range(8)]
        llm.generate(prompts[:8], sampling=sampling)
        lengths, plans = llm.engine.scheduler.draft_lengths, llm.engine.graphs.plans
        assert len(lengths.costs(2)) > 1
        assert lengths.decision(2) is None
        assert {plan.num_drafts for plan in plans if not plan.num_context} >= {2, 3}
        assert {plan.num_drafts for plan in plans if plan.num_context} <= {0, 3}  # 0: no row decodes
