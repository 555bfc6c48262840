"""Programs that say how hot a token is drawn: as if the request had said so, however it is drafted and launched."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.engine.drafters import SPECULATIONS
from support.engine.requests import Told, settle, told
from support.products import rest_slow
from support.wasm.digits import deciding, digits
from support.wasm.guides import PROMPT
from weft import LLM, EngineConfig, Guide, Output, SamplingParams, Speculation

COUNT = 14


def heated(temperature: float | str) -> Guide:
    """Digits, drawn at a temperature of the program's."""
    program = deciding(f',"temperature":{temperature},"splices":[]}}]}}')
    return Guide.wasm(program, str(COUNT), trusted=True)


def alternating() -> Guide:
    """Digits, drawn at temperature 9 while an odd number of them is left, and at 0 otherwise."""
    program = deciding(',"temperature":0,"splices":[]}]}').decode()
    # `deciding` keeps the decision's text at address 1024, and its temperature is the 16th character.
    digit = "(i32.add (i32.const 48) (i32.mul (i32.const 9) (i32.and (global.get $left) (i32.const 1))))"
    sample = "(func $sample (local $end i32)"
    assert program.count(sample) == 1
    program = program.replace(sample, f"{sample} (i32.store8 (i32.const 1039) {digit})")
    return Guide.wasm(program.encode(), str(COUNT), trusted=True)


def drawn(temperature: float, **terms: object) -> SamplingParams:
    return SamplingParams(max_tokens=20, temperature=temperature, seed=11, **terms)  # type: ignore[arg-type]


# What the request says, what its program says, what then holds.
CASES = [
    (0.0, 1.5, 1.5),
    (1.5, 0.0, 0.0),
    (0.7, 8.0, 8.0),
    (3.0, "null", 3.0),
]
TRUNCATED = {"top_k": 3}


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    with LLM(device="cpu", engine=EngineConfig(max_batch=1, graphs="none")) as llm:
        sampling = [drawn(holds) for _, _, holds in CASES] + [drawn(1.5, **TRUNCATED), drawn(1.5)]
        guides = [*[digits(COUNT)] * (len(CASES) + 1), Guide.regex("[a-z]{9}")]
        outputs: list[Output] = llm.generate([PROMPT] * len(guides), guide=guides, sampling=sampling)
    tokens = [output.token_ids for output in outputs]
    assert len({tuple(each) for each in tokens}) == len(tokens), "temperatures matter here"
    return tokens


@rest_slow
@pytest.mark.parametrize("way", ["one", "split", "none", "overlap"])
@pytest.mark.parametrize("name", sorted(SPECULATIONS))
def test_the_program_says_how_hot(expected: list[list[int]], name: str, way: str) -> None:
    graphs = "one" if way == "overlap" else way
    config = EngineConfig(max_batch=4, graphs=graphs, overlap=way == "overlap")  # type: ignore[arg-type]
    with LLM(device="cpu", speculation=SPECULATIONS[name], engine=config) as llm:
        sampling = [drawn(says) for says, _, _ in CASES] + [drawn(0.0, **TRUNCATED), drawn(1.5)]
        guides = [*(heated(wants) for _, wants, _ in CASES), heated(1.5), Guide.regex("[a-z]{9}")]
        outputs: list[Output] = llm.generate([PROMPT] * len(guides), guide=guides, sampling=sampling)
    assert [output.token_ids for output in outputs] == expected


# Ways in which the drafter waits for the grammar's commit: for masks, not at all, and for proposals.
WAITING = {
    "masked": Speculation.eagle3(num_draft_tokens=3, guide_drafts=True),
    "unmasked": Speculation.eagle3(num_draft_tokens=3, guide_drafts=False),
    "proposals": Speculation.forced(Speculation.eagle3(num_draft_tokens=3, guide_drafts=False)),
}


@pytest.mark.parametrize("graphs", ["one", "split"])
@pytest.mark.parametrize("name", WAITING)
def test_changing_temperatures_give_the_same_drafts_in_every_order(
    name: str, graphs: str, schedules: Callable[..., None]
) -> None:
    """The drafter must not read a temperature that the grammar stream may be replacing at that moment."""
    config = EngineConfig(max_batch=4, graphs=graphs)  # type: ignore[arg-type]
    with LLM(device="cpu", speculation=WAITING[name], engine=config) as llm:

        def answers() -> Told:
            settle(llm)
            sampling = [SamplingParams(max_tokens=20, temperature=0.0, seed=seed) for seed in range(4)]
            return told(llm.generate([PROMPT] * 4, guide=[alternating()] * 4, sampling=sampling))

        inline = answers()
        for schedule, seed in [*(("random", seed) for seed in range(4)), ("ahead", 0), ("ahead", 1)]:
            settle(llm)
            schedules(schedule, seed)
            assert answers() == inline, f"{schedule}, seed {seed}"
        settle(llm)
