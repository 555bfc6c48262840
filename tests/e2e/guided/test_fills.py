"""Each mask is filled once: K + 1 fills for a guided row in an iteration, drafting and verification together; none for
a row without a guide; with fewer drafts, or drafts that the grammar refuses, just so many fewer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.engine.drafters import DRAFTERS, save_random_drafters
from support.engine.references import Checkpoint
from support.engine.requests import make_request
from support.products import Run, covering, runs_as_cases
from weft import LLM, EngineConfig, Guide, SamplingParams
from weft.grammar.base import CompiledGuide

SAMPLING = SamplingParams(max_tokens=24, temperature=1.0, seed=1)
LITERAL = (
    "What is written here is all that may be said, word by word and to the letter, however it is cut. " * 4
)
ON_THE_HOST = ("ngram", "lookahead", "forced", "forced+ngram")
RUNS = covering(
    {
        "drafter": [name for name in DRAFTERS if not name.endswith("unguided")],
        "num_drafts": [1, 3, 8],
        "guide": ["open", "any text", "literal"],
        "masked": [True, False],
        "graphs": ["one", "split", "none"],
    },
    can_be=lambda run: run["drafter"] != "forced" or run["guide"] == "literal",
)


@dataclass
class Open:
    """A matcher that refuses nothing, and counts the masks it is asked for."""

    fills: int = 0

    def accept(self, token: int) -> bool:
        return True

    def fill(self, row: NDArray[np.int32]) -> None:
        self.fills += 1
        row[:] = -1

    def rollback(self, count: int) -> None:
        pass

    def is_terminated(self) -> bool:
        return False


@dataclass
class Iterations:
    """What a guided request's iterations made, its prompt's reading first: how many drafts each, and how many of those
    the grammar takes."""

    made: list[int] = field(default_factory=list)
    legal: list[int] = field(default_factory=list)

    def note(self, compiled: CompiledGuide, text: list[int], drafts: list[int]) -> None:
        count = drafts.index(-1) if -1 in drafts else len(drafts)
        matcher = compiled.matcher()
        assert all(matcher.accept(token) for token in text)
        self.made.append(count)
        self.legal.append(next((j for j in range(count) if not matcher.accept(drafts[j])), count))

    def fills(self, num_drafts: int, masks_drafts: bool) -> int:
        """The row before the first token; the one behind what each of them committed, and one behind each draft: of the
        last iteration's drafts only while they are made, but for the last of them."""
        ahead = min(self.legal[-1], num_drafts - 1) if masks_drafts else 0
        return 1 + len(self.legal) + sum(self.legal[:-1]) + ahead


@pytest.fixture(scope="module")
def random_drafters(tiny: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_drafters(tmp_path_factory.mktemp("drafters"), tiny)


@pytest.mark.parametrize("run", runs_as_cases(RUNS))
def test_each_mask_is_filled_once(
    tiny: Checkpoint, prompts: list[str], random_drafters: Path, run: Run
) -> None:
    num_drafts, masked, drafter = run["num_drafts"], run["masked"], run["drafter"]
    speculation = replace(DRAFTERS[drafter](random_drafters, num_drafts), guide_drafts=masked)
    engine = EngineConfig(max_batch=2, max_seq_len=512, graphs=run["graphs"])
    opened: list[Open] = []
    guide = {
        "open": Guide.matcher(lambda: opened.append(Open()) or opened[-1]),  # type: ignore[func-returns-value]
        "any text": Guide.regex(r"(.|\n){400}"),
        "literal": Guide.choice([LITERAL]),
    }[run["guide"]]
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        request, seen = make_request(llm, prompts[0], SAMPLING, guide), Iterations()
        neighbour = make_request(llm, prompts[1], SAMPLING)
        assert request.guide is not None
        compiled = request.guide.compiling.result()
        llm.engine.submit(request)
        llm.engine.submit(neighbour)
        state, text = llm.engine.grammar.state, list[int]()
        while not (request.is_finished and neighbour.is_finished):
            slot = request.slot if request.is_active else 0
            llm.engine.step()
            if request.output.token_ids and request.output.stats.iterations == len(seen.made):
                count, *tokens = llm.engine.parts.state.verified[slot].tolist()
                text += tokens[: count + 1]  # the answer's, and what was committed beyond its limit
                seen.note(compiled, text, llm.engine.parts.state.drafts[:num_drafts, slot].tolist())
        assert request.output.error is None
        fills = sum(state.counters(operation).fills for operation in ("fetch", "extend", "commit"))
    on_the_host = drafter in ON_THE_HOST
    assert fills == seen.fills(num_drafts, masked and not on_the_host)
    assert sum(matcher.fills for matcher in opened) == (fills if opened else 0)
    check_that_drafts_are_legal(run, seen)


def is_pruned(run: Run) -> bool:
    """Whether the drafter's vocabulary lacks most of what the grammar wants."""
    return bool(run["drafter"] == "random eagle3" and run["guide"] == "literal")


def check_that_drafts_are_legal(run: Run, seen: Iterations) -> None:
    """All K, where nothing makes them fewer: then an iteration has K + 1 fills, no more and no fewer."""
    everywhere: list[int] = [run["num_drafts"]] * len(seen.made)
    if run["drafter"] not in ON_THE_HOST and not is_pruned(run):
        assert seen.made[1:] == everywhere[1:]  # behind the prompt there are none yet
    if run["masked"] or run["guide"] == "open":
        assert seen.legal == seen.made
    if "forced" in run["drafter"] and run["guide"] == "literal":
        assert seen.legal == everywhere
    assert sum(seen.made) > 0
