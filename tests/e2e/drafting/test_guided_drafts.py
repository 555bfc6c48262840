"""`guide_drafts="auto"` measures in the engine and decides: for masks where they make drafts right, against them where
they cost more than they bring. The tokens are the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.engine.drafters import save_random_drafters
from support.engine.references import Checkpoint
from weft import LLM, EngineConfig, Guide, Output, SamplingParams, Speculation
from weft.config import Graphs
from weft.engine.runner.draft_guidance import BLOCK, MEASURED, WARM_UP

DRAFTS = 6
SAMPLING = SamplingParams(max_tokens=240)


@dataclass
class Turning:
    """The tokens that may follow change with each token: `width` of them, from 40 on. A mask takes `fill_s` seconds."""

    width: int
    fill_s: float
    taken: list[int] = field(default_factory=list)
    fills: int = 0

    def allowed(self) -> range:
        first = 40 + len(self.taken) * 37 % 900
        return range(first, first + self.width)

    def accept(self, token: int) -> bool:
        if token not in self.allowed():
            return False
        self.taken.append(token)
        return True

    def fill(self, row: NDArray[np.int32]) -> None:
        time.sleep(self.fill_s)
        self.fills += 1
        words = row.view("uint32")
        words[:] = 0
        for token in self.allowed():
            words[token // 32] |= 1 << (token % 32)

    def rollback(self, count: int) -> None:
        del self.taken[len(self.taken) - count :]

    def is_terminated(self) -> bool:
        return False


def answers(llm: LLM, prompts: list[str], width: int, fill_s: float) -> list[tuple[Output, int]]:
    """One after another, each with how many masks were asked for."""
    found = []
    for prompt in prompts:
        made: list[Turning] = []

        def factory(made: list[Turning] = made) -> Turning:
            made.append(Turning(width, fill_s))
            return made[-1]

        output = llm.generate(prompt, guide=Guide.matcher(factory), sampling=SAMPLING)
        found.append((output, sum(matcher.fills for matcher in made)))
    return found


@pytest.fixture(scope="module")
def random_drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.mark.serial  # by measured times; `tests/unit/engine/runner/test_adaptive.py` moves a clock
@pytest.mark.parametrize(("pays", "graphs"), [(True, "one"), (True, "split"), (False, "one")])
def test_auto_measures_and_decides(
    tiny: Checkpoint, prompts: list[str], random_drafters: Path, pays: bool, graphs: Graphs
) -> None:
    """Drafts without masks are refused at once. With masks, they are right where one token alone may follow; where
    many may, they are as wrong as without, and each costs a mask that takes its time.
    """
    width, fill_s, count = (1, 0.0, 3) if pays else (200, 0.003, 1)
    speculation = Speculation.draft_model(random_drafters / "draft", num_draft_tokens=DRAFTS)
    engine = EngineConfig(max_batch=1, max_seq_len=512, graphs=graphs)
    with LLM(tiny.path, device="cpu", engine=EngineConfig(max_batch=1, max_seq_len=512)) as plain:
        expected = [output.token_ids for output, _ in answers(plain, prompts[:count], width, 0.0)]
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        measured = answers(llm, prompts[:count], width, fill_s)
        iterations = sum(output.stats.iterations for output, _ in measured)
        assert iterations >= 2 * (MEASURED + WARM_UP) + BLOCK
        (output, fills) = answers(llm, prompts[:1], width, fill_s)[0]
    assert [other.token_ids for other, _ in measured] == expected
    assert output.token_ids == expected[0]
    if pays:
        assert output.stats.acceptance_length > DRAFTS
        assert output.stats.acceptance_length > measured[0][0].stats.acceptance_length
    else:
        assert fills < 2 * output.stats.iterations
        assert measured[0][1] > 2 * measured[0][0].stats.iterations
