"""Every guided answer that ends is valid, by validators that are not weft's: over 2,000 of them, with every drafter."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.engine.drafters import DRAFTERS
from support.engine.guide_rows import is_valid, questions
from support.engine.references import Checkpoint, make_guide
from support.products import every_third, pairwise
from weft import LLM, EngineConfig, SamplingParams

MAX_TOKENS = 72
PARTS = 4
"""Of the questions of a drafter and a temperature: `make test` asks one part of each drafter's, CI all."""
FINISHED = 18
"""Of a part, at least."""
TEMPERATURES = (0.0, 1.0)

assert len(DRAFTERS) * len(TEMPERATURES) * PARTS * FINISHED >= 2000


@pairwise
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("drafter", every_third([*DRAFTERS]))
def test_answers_are_valid(
    tiny: Checkpoint, drafters: Path, drafter: str, temperature: float, part: int
) -> None:
    seed = list(DRAFTERS).index(drafter) * 2 + TEMPERATURES.index(temperature)
    asked = questions(seed)[part::PARTS]
    speculation = DRAFTERS[drafter](drafters, 1 + seed % 5)
    engine = EngineConfig(max_batch=8, max_seq_len=512, graphs="split" if seed % 4 == 3 else "one")
    with LLM(tiny.path, device="cpu", speculation=speculation, engine=engine) as llm:
        outputs = llm.generate(
            [question.prompt for question in asked],
            guide=[make_guide(question.guide) for question in asked],
            sampling=[
                SamplingParams(max_tokens=MAX_TOKENS, temperature=temperature, seed=1000 * seed + i)
                for i in range(len(asked))
            ],
        )
    assert [output.error for output in outputs if output.error is not None] == []
    finished = [(o, q) for o, q in zip(outputs, asked, strict=True) if o.finish_reason == "stop"]
    invalid = [(q.guide, o.text) for o, q in finished if not is_valid(o.text, q.guide, tiny)]
    assert invalid == []
    assert all(output.stats.guided_valid for output, _ in finished)
    assert len(finished) >= FINISHED
