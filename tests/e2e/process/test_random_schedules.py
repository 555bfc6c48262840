"""Every legal order of an iteration's work gives the same tokens in the same number of iterations, with the same drafts
accepted, the host running ahead by any legal distance: every drafter, under every kind of guide, greedy and drawn;
every two settings of an engine meet.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.drafting_requests import GUIDED
from support.engine.references import Checkpoint, make_guide
from support.engine.requests import Told, settle, told
from support.products import Run, covering
from weft import LLM, EngineConfig, SamplingParams

SEEDS = 4
RUNS = covering(
    {
        "drafter": list(DRAFTERS),
        "graphs": ["one", "split"],
        "host_tasks": ["callback", "polling"],
        "num_drafts": [1, 3, 8],
        "batch": [1, 3, 8],
        "overlap": [True, False],
        "drawn": [0, 1],  # guides with an even or an odd number are those of rows at temperature 1
    },
    can_be=lambda run: not (run["graphs"] == "split" and (run["overlap"] or run["host_tasks"] == "polling")),
)


@pytest.fixture(scope="module")
def random_drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda run: "-".join(str(value) for value in run.values()))
def test_random_schedules_give_the_same_answers(
    tiny: Checkpoint, prompts: list[str], random_drafters: Path, schedules: Callable[..., None], run: Run
) -> None:
    """The prompts' ends stand alone, and answers are short: what differs is the order."""
    speculation = DRAFTERS[run["drafter"]](random_drafters, run["num_drafts"])
    engine = EngineConfig(
        max_batch=run["batch"],
        max_seq_len=128,
        graphs=run["graphs"],
        host_tasks=run["host_tasks"],
        overlap=run["overlap"],
    )
    guides = [make_guide(entry) if entry is not None else None for entry in GUIDED]
    sampling = [
        SamplingParams(max_tokens=8, temperature=float(i % 2 == run["drawn"]), seed=i)
        for i in range(len(GUIDED))
    ]
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:

        def answers() -> Told:
            settle(llm)
            texts = [prompt[-50:] for prompt in prompts[: len(GUIDED)]]
            return told(llm.generate(texts, guide=guides, sampling=sampling))

        inline, first = answers(), RUNS.index(run) * SEEDS
        for schedule, seed in [*(("random", first + i) for i in range(SEEDS)), ("ahead", 0), ("ahead", 1)]:
            settle(llm)
            schedules(schedule, seed)
            assert answers() == inline, f"{schedule}, seed {seed}"
        settle(llm)
