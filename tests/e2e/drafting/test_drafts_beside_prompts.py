"""Drafts do not depend on how prompts are read: whole or in parts, beside other sequences, or from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.engine.drafters import DRAFTERS
from support.engine.references import Checkpoint
from support.engine.requests import Told, make_request, run, settle, told
from weft import LLM, EngineConfig, SamplingParams
from weft.core.logits_processors import LogitsProcessor, ProcessorRows
from weft.engine.sequence import Sequence

READING: dict[str, dict[str, Any]] = {
    "together": {"max_batch": 8},
    "in parts": {"max_batch": 3, "prefill_chunk": 8, "overlap": True},
    "in parts, eager": {"max_batch": 3, "prefill_chunk": 5, "graphs": "none"},
    "from the cache": {"max_batch": 3, "prefill_chunk": 8, "reuse": True, "page_size": 4},
}


class Nothing:
    """A captured logits processor that leaves the logits as they are."""

    allows_capture = True

    def __call__(self, rows: ProcessorRows, logits_BTV: torch.Tensor, stream: object) -> None:
        pass


def requests(llm: LLM, prompts: list[str], **fields: Any) -> list[Sequence]:
    """Requests for prompts of one token and more."""
    samplings = [SamplingParams(max_tokens=24, temperature=i % 2 / 2, seed=i) for i in range(6)]
    texts = ["", "x", *prompts[:4]]
    return [make_request(llm, *pair, **fields) for pair in zip(texts, samplings, strict=True)]


def answers(llm: LLM, many: list[Sequence], together: bool = True) -> Told:
    for batch in [many] if together else [[each] for each in many]:
        run(llm, batch)
    settle(llm)
    return told(many)


@pytest.mark.parametrize("drafter", ["eagle3", "mtp", "draft_model"])
def test_as_many_are_accepted(drafter: str, tiny: Checkpoint, prompts: list[str]) -> None:
    speculation = DRAFTERS[drafter](Path(), 3)

    def make(**engine: Any) -> LLM:
        config = EngineConfig(**{"max_seq_len": 256, "reuse": False} | engine)
        return LLM(tiny.path, device="cpu", speculation=speculation, engine=config)

    with make(max_batch=1) as llm:
        expected = answers(llm, requests(llm, prompts), together=False)
    assert all(counted.accepted_drafts > 0 for _, counted in expected)
    for engine in READING.values():
        with make(**engine) as llm:
            assert answers(llm, requests(llm, prompts)) == expected, engine
            assert answers(llm, requests(llm, prompts)) == expected, engine
    # Iterations with logits processors read no prompts.
    with make(max_batch=3, reuse=True, page_size=1) as llm:
        for _ in range(2):
            many = requests(llm, prompts, processor=LogitsProcessor("nothing", Nothing()))
            assert answers(llm, many, together=False) == expected
