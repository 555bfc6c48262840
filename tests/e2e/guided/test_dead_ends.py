"""Dead ends, where no token may follow. One in the answer ends its own request; one among drafts that are not taken, or
past the answer, is of no account.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.engine.drafters import DRAFTERS
from support.engine.protocol_requests import GUIDES, SAMPLINGS, make_llm
from support.engine.references import Checkpoint
from support.products import pairwise, rest_slow
from weft import LLM, Guide, GuideStateError, Output, RequestError, SamplingParams
from weft.config import Graphs


class OnlyOnPath:
    """A matcher that takes everything: behind `path` and its beginnings all may follow, elsewhere nothing; and nothing
    behind its first `dies_behind` tokens.
    """

    def __init__(self, path: list[int], dies_behind: int | None = None) -> None:
        self.path, self.dies_behind, self.taken = path, dies_behind, list[int]()

    def accept(self, token: int) -> bool:
        self.taken.append(token)
        return True

    def fill(self, row: NDArray[np.int32]) -> None:
        if self.taken == self.path[: len(self.taken)] and len(self.taken) != self.dies_behind:
            row[:] = -1

    def rollback(self, count: int) -> None:
        del self.taken[len(self.taken) - count :]

    def is_terminated(self) -> bool:
        return False


@pairwise
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("graphs", ["one", "split"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_dead_ends(
    prompts: list[str], plain: LLM, drafters: Path, drafter: str, graphs: Graphs, temperature: float
) -> None:
    """Behind a draft that the target does not take, a dead end is nobody's business; behind the text it ends the
    request.
    """
    sampling = SamplingParams(max_tokens=12, temperature=temperature, seed=3)
    farther = SamplingParams(
        max_tokens=24, temperature=temperature, seed=3
    )  # than an iteration goes beyond the end
    paths = [plain.generate(prompt, sampling=farther).token_ids for prompt in prompts[:3]]
    assert min(map(len, paths)) == 24
    guides = [
        Guide.matcher(lambda: OnlyOnPath(paths[0])),
        Guide.matcher(lambda: OnlyOnPath(paths[1], 5)),
        None,
    ]
    with make_llm(DRAFTERS[drafter](drafters, 3), graphs=graphs) as llm:
        for _ in range(2):
            outputs: list[Output] = llm.generate(prompts[:3], guide=guides, sampling=sampling)
            assert outputs[0].error is None
            assert outputs[0].token_ids == paths[0][:12]
            assert isinstance(outputs[1].error, GuideStateError)
            assert "no token may follow" in str(outputs[1].error)
            assert outputs[1].token_ids == paths[1][: len(outputs[1].token_ids)]
            assert len(outputs[1].token_ids) < 5
            assert outputs[2].token_ids == paths[2][:12]


@rest_slow
@pytest.mark.parametrize("graphs", ["one", "split"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_dead_ends_behind_the_last_token_are_of_no_account(
    prompts: list[str], plain: LLM, drafters: Path, drafter: str, graphs: Graphs
) -> None:
    """Drafts reach beyond the answer; it ends as it does without them."""
    path = plain.generate(prompts[0], sampling=SamplingParams(max_tokens=24)).token_ids
    with make_llm(DRAFTERS[drafter](drafters, 3), graphs=graphs) as llm:
        for llm_or_plain, dies_behind in itertools.product((plain, llm), (11, 12, 13, 14)):
            guide = Guide.matcher(lambda dies_behind=dies_behind: OnlyOnPath(path, dies_behind))
            sampling = SamplingParams(max_tokens=12)
            (output,) = llm_or_plain.generate([prompts[0]], guide=guide, sampling=sampling)
            if dies_behind < 12:
                assert isinstance(output.error, GuideStateError)
            else:
                assert output.error is None, f"{dies_behind}: {output.error}"
                assert (output.token_ids, output.finish_reason) == (path[:12], "length")


@pairwise
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("by", ["logit_bias", "bad_words"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_rows_left_empty_behind_drafts(
    tiny: Checkpoint,
    prompts: list[str],
    alone: list[list[int]],
    drafters: Path,
    drafter: str,
    by: str,
    temperature: float,
) -> None:
    """The grammar wants a z at the end, and the request forbids it."""
    forbidden = [i for i in range(len(tiny.tokenizer)) if "z" in tiny.tokenizer.decode([i])]
    given: dict[str, Any] = {
        "logit_bias": {"logit_bias": dict.fromkeys(forbidden, -math.inf)},
        "bad_words": {"bad_words": [[token] for token in forbidden]},
    }[by]
    sampling = SamplingParams(max_tokens=20, temperature=temperature, seed=2, **given)
    with make_llm(DRAFTERS[drafter](drafters, 3)) as llm:
        outputs: list[Output] = llm.generate(
            [prompts[0], prompts[1], prompts[2]],
            guide=[GUIDES[0], Guide.regex("[a-y]{9}z"), None],
            sampling=[SAMPLINGS[0], sampling, SAMPLINGS[2]],
        )
    assert outputs[0].token_ids == alone[0]
    assert outputs[2].token_ids == alone[2]
    assert isinstance(outputs[1].error, RequestError)
    assert f"the guide and {by} forbid every one together" in str(outputs[1].error)
    assert re.fullmatch("[a-y]{0,9}", outputs[1].text)
