"""After a warm-up, no mix of ordinary requests captures anything."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.products import rest_slow
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation
from weft.config import Graphs

PROMPTS = ["Text: Ada is 31.\nJSON: ", "Text: Bo Li lives in Oslo, and has for years.\nJSON: ", "x"]
GUIDES = (None, Guide.json(), Guide.regex("[a-z]{1,9}"))
SAMPLINGS = (
    SamplingParams(max_tokens=5),
    SamplingParams(max_tokens=9, temperature=0.9, top_p=0.8, top_k=20, seed=1),
    SamplingParams(max_tokens=3, logprobs=3),
    SamplingParams(
        max_tokens=12, min_tokens=4, repetition_penalty=1.2, bad_words=["no"], logit_bias={9: 2.0}
    ),
)
SPECULATIONS = {
    "none": Speculation.none(),
    "eagle3": Speculation.eagle3(num_draft_tokens={1: 3, 3: 2, 6: 0}),
    "mtp": Speculation.mtp(num_draft_tokens=2, guide_drafts=True),
    "draft_model": Speculation.draft_model(num_draft_tokens=2, guide_drafts=False),
    "forced+ngram": Speculation.forced(Speculation.ngram(num_draft_tokens=4)),
    "given+eagle3": Speculation.given(Speculation.eagle3(num_draft_tokens=3)),
}


def mixes(name: str, count: int) -> list[dict[str, Any]]:
    """Requests of one call each: how many, and what each asks."""
    rng = random.Random(name)
    made = []
    for _ in range(count):
        size = rng.choice([1, 1, 2, 3, 5, 6, 9])
        limits = [rng.choice([None, None, 0, 1]) for _ in range(size)]
        made.append(
            {
                "prompts": [rng.choice(PROMPTS) for _ in range(size)],
                "guide": [rng.choice(GUIDES) for _ in range(size)],
                "sampling": [rng.choice(SAMPLINGS) for _ in range(size)],
                "max_drafts": limits if name != "none" else None,
            }
        )
    return made


@rest_slow
@pytest.mark.parametrize("name", SPECULATIONS)
@pytest.mark.parametrize("graphs", ["one", "split"])
def test_no_mix_of_requests_captures_after_a_warm_up(name: str, graphs: Graphs) -> None:
    engine = EngineConfig(
        max_batch=6, max_seq_len=96, max_beam_width=3 if name == "none" else 1, graphs=graphs
    )
    with LLM(device="cpu", speculation=SPECULATIONS[name], engine=engine) as llm:
        llm.warm_up()
        captured = llm.engine.graphs.num_captures
        assert captured
        for mix in mixes(name, 16):
            llm.generate(mix.pop("prompts"), **mix)
        if name == "none":
            llm.generate(PROMPTS, beam_width=3, sampling=SamplingParams(max_tokens=4))
        llm.generate(PROMPTS[:1], sampling=SamplingParams(max_tokens=4, temperature=1.0, n=4))
        assert llm.engine.graphs.num_captures == captured
