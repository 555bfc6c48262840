"""Every drafter gives the tokens of decoding without speculation: trained and random, guided or not, greedy and at
temperature 1, in one graph, in split graphs and eager, in batches, at every draft length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import Checkpoint, make_guide
from e2e.drafters import DRAFTERS, save_random_drafters
from e2e.drafting_requests import GUIDED, ROWS, check, references, run
from e2e.oracle import Reference
from weft import LLM, EngineConfig, SamplingParams, Speculation
from weft.runtime import cpu


@pytest.fixture(scope="module")
def random_drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.fixture(scope="module")
def expected(tiny: Checkpoint, prompts: list[str]) -> list[Reference]:
    return references(tiny, prompts)


@pytest.mark.parametrize("num_drafts", [1, 3, 8])
@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("graphs", ["one", "split"])
@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
def test_tokens_are_those_without_speculation(
    tiny: Checkpoint,
    prompts: list[str],
    expected: list[Reference],
    random_drafters: Path,
    drafter: str,
    graphs: Any,
    batch: int,
    num_drafts: int,
) -> None:
    speculation = DRAFTERS[drafter](random_drafters, num_drafts)
    engine = EngineConfig(max_batch=batch, max_seq_len=512, graphs=graphs)
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        check(run(llm, prompts), expected)
        if graphs == "one":
            assert llm.num_graph_replays == llm.num_iterations > 0
        else:
            assert llm.num_graph_replays > llm.num_iterations


@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
def test_eager_and_in_small_chunks(
    tiny: Checkpoint, prompts: list[str], expected: list[Reference], random_drafters: Path, drafter: str
) -> None:
    engine = EngineConfig(max_batch=5, max_seq_len=512, graphs="none", prefill_chunk=7)
    speculation = DRAFTERS[drafter](random_drafters, 4)
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        check(run(llm, prompts), expected)
        assert llm.num_graph_replays == 0


@pytest.mark.parametrize("graphs", ["one", "split", "none"])
@pytest.mark.parametrize(
    "drafter", ["eagle3", "mtp", "random mtp chain", "draft_model", "ngram", "forced+eagle3"]
)
def test_draft_lengths_by_batch_size(
    tiny: Checkpoint,
    prompts: list[str],
    expected: list[Reference],
    random_drafters: Path,
    drafter: str,
    graphs: Any,
) -> None:
    """The batch shrinks as requests finish, and the length goes from none to five; each length has its own graphs."""
    speculation = DRAFTERS[drafter](random_drafters, 1)
    speculation = Speculation(
        speculation.drafters, {1: 5, 2: 2, 4: 1, 6: 0}, speculation.path, speculation.guide_drafts
    )
    engine = EngineConfig(max_batch=8, max_seq_len=512, graphs=graphs)
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        check(run(llm, prompts), expected)
        check(run(llm, prompts), expected)


@pytest.fixture
def schedules() -> Iterator[Callable[..., None]]:
    yield cpu.set_schedule
    cpu.synchronize()
    cpu.set_schedule("inline")


@pytest.mark.slow
@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
def test_random_schedules_give_the_same_tokens(
    tiny: Checkpoint,
    prompts: list[str],
    random_drafters: Path,
    schedules: Callable[..., None],
    drafter: str,
) -> None:
    speculation = DRAFTERS[drafter](random_drafters, 3)
    engine = EngineConfig(max_batch=3, max_seq_len=256)
    rows = [2, 3, 8, 10]
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:

        def tokens() -> list[list[int]]:
            outputs = llm.generate(
                [prompts[i][-50:] for i in rows],
                guide=[make_guide(e) if (e := GUIDED[ROWS[i][0]]) is not None else None for i in rows],
                sampling=[SamplingParams(max_tokens=8, temperature=ROWS[i][1], seed=i) for i in rows],
            )
            return [output.token_ids for output in outputs]

        inline = tokens()
        for seed in range(12):
            schedules("random", seed)
            assert tokens() == inline, f"seed {seed}"
            cpu.synchronize()


@pytest.mark.parametrize("num_drafts", [1, 3, 8])
@pytest.mark.parametrize("drafter", sorted(DRAFTERS))
def test_each_mask_is_filled_once(
    tiny: Checkpoint, prompts: list[str], random_drafters: Path, drafter: str, num_drafts: int
) -> None:
    """K + 1 fills for a guided row in an iteration, drafting and verification together; fewer with fewer drafts."""
    speculation = DRAFTERS[drafter](random_drafters, num_drafts)
    if drafter in ("eagle3", "mtp", "draft_model"):
        speculation = replace(speculation, guide_drafts=True)
    guide = make_guide(("regex", r"[a-z0-9 ]{400}"))  # refuses few drafts, does not end here
    engine = EngineConfig(max_batch=2, max_seq_len=512)
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        state = llm.engine.lane.state

        def fills() -> int:
            return sum(state.counters(operation).fills for operation in ("fetch", "extend", "commit"))

        outputs = llm.generate(
            prompts[:2], guide=[guide, None], sampling=SamplingParams(max_tokens=30, temperature=1.0, seed=1)
        )
        iterations = outputs[0].stats.iterations
        # The prefill fills the row before the first token, and the one behind it.
        assert iterations < fills() <= iterations * (num_drafts + 1) + 2
        if drafter in ("eagle3", "mtp", "draft_model"):  # masked drafts are all legal
            assert fills() >= (iterations - 2) * (num_drafts + 1)


@pytest.mark.parametrize("given", [0, 9, -1, {1: 9}, {0: 3}, {1: 0}, {4: -2}, 2.5, "3"])
def test_draft_lengths_that_can_not_be_are_refused(given: Any) -> None:
    from weft.errors import InputError

    with pytest.raises(InputError, match="num_draft_tokens"):
        Speculation.eagle3(num_draft_tokens=given)


def test_compositions_that_make_no_sense_are_refused() -> None:
    from weft.errors import InputError

    with pytest.raises(InputError, match="given twice"):
        Speculation.forced(Speculation.ngram(), num_draft_tokens=3)
    with pytest.raises(InputError, match="forced text itself"):
        Speculation.forced(Speculation.forced())
    with pytest.raises(InputError, match="one drafter on the device"):
        LLM(speculation=Speculation(("eagle3", "mtp"), 3))
    with pytest.raises(InputError, match="put it first"):
        LLM(speculation=Speculation(("eagle3", "ngram"), 3))
    with pytest.raises(InputError, match="not one of the drafters"):
        LLM(speculation=Speculation(("eagle4",), 3))
