"""Targets that draft with modules of their checkpoint, whose layers are those of their family: latent attention, or a
mixture beside recurrent layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.mtp_families import FAMILIES, save_with_module
from weft import LLM, EngineConfig, Guide, SamplingParams, Speculation

SAMPLING = [SamplingParams(max_tokens=24, temperature=t, seed=i) for i, t in enumerate((0.0, 1.0, 0.0, 1.0))]
GUIDES = [None, None, Guide.json(), Guide.regex("(ab|[0-9]{1,3}-)*END")]


@pytest.mark.parametrize("graphs", ["one", "none"])
@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_are_those_without_speculation(
    name: str, graphs: Any, prompts: list[str], tmp_path: Path
) -> None:
    save_with_module(tmp_path, name)
    engine = EngineConfig(max_batch=3, max_seq_len=256, graphs=graphs, prefill_chunk=16)
    answers = []
    for speculation in (Speculation.none(), Speculation.mtp(num_draft_tokens=3)):
        with LLM(tmp_path, device="cpu", engine=engine, speculation=speculation) as llm:
            outputs = llm.generate(prompts[:4], sampling=SAMPLING, guide=GUIDES)
            outputs += llm.generate(prompts[:4], sampling=SAMPLING, guide=GUIDES)  # prompts are cached
        answers.append([output.token_ids for output in outputs])
    assert answers[0] == answers[1]
    assert sum(output.stats.proposed_drafts for output in outputs) > 0
