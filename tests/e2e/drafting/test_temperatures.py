"""Programs that say how hot a token is drawn: as if the request had said so, however it is drafted and launched."""

from __future__ import annotations

import pytest

from support.engine.drafters import SPECULATIONS
from support.products import rest_slow
from support.wasm.digits import deciding, digits
from support.wasm.guides import PROMPT
from weft import LLM, EngineConfig, Guide, Output, SamplingParams

COUNT = 14


def heated(temperature: float | str) -> Guide:
    """Digits, drawn at a temperature of the program's."""
    program = deciding(f',"temperature":{temperature},"splices":[]}}]}}')
    return Guide.wasm(program, str(COUNT), trusted=True)


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
