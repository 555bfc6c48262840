"""Every drafter gives the tokens of decoding without speculation: trained and random, guided or not, greedy and at
temperature 1, in one graph, in split graphs and eager, in batches, at every draft length.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.drafting_requests import check, references, run
from support.engine.oracle import Reference
from support.engine.references import Checkpoint
from support.products import every_third, pairwise, rest_slow
from weft import LLM, EngineConfig, Speculation


@pytest.fixture(scope="module")
def random_drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.fixture(scope="module")
def expected(tiny: Checkpoint, prompts: list[str]) -> list[Reference]:
    return references(tiny, prompts)


@pairwise
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
    engine = EngineConfig(max_batch=batch, max_seq_len=512, kv_cache_dtype="float32", graphs=graphs)
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        check(run(llm, prompts), expected)
        if graphs == "one":
            assert llm.num_graph_replays == llm.num_iterations > 0
        else:
            assert llm.num_graph_replays > llm.num_iterations


@pytest.mark.parametrize("drafter", every_third(sorted(DRAFTERS)))
def test_eager_and_in_small_chunks(
    tiny: Checkpoint, prompts: list[str], expected: list[Reference], random_drafters: Path, drafter: str
) -> None:
    engine = EngineConfig(
        max_batch=5, max_seq_len=512, kv_cache_dtype="float32", graphs="none", prefill_chunk=7
    )
    speculation = DRAFTERS[drafter](random_drafters, 4)
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        check(run(llm, prompts), expected)
        assert llm.num_graph_replays == 0


@rest_slow
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
    engine = EngineConfig(max_batch=8, max_seq_len=512, kv_cache_dtype="float32", graphs=graphs)
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        check(run(llm, prompts), expected)
        check(run(llm, prompts), expected)


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
