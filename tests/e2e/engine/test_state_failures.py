"""Failures that must not change the recurrent states of other requests: no token may be read twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.families import HYBRIDS, save
from weft import LLM, EngineConfig, SamplingParams
from weft.core.logits_processors import LogitsProcessor
from weft.engine.runner import graphs
from weft.engine.runner.step import Iteration, decode_step


def likeliest(network: Any, prompt: list[int], count: int) -> list[int]:
    """The next `count` tokens, each the likeliest."""
    text = [*prompt]
    with torch.inference_mode():
        for _ in range(count):
            logits = network(torch.tensor([text]), use_cache=False).logits[0, -1]
            text.append(int(logits.argmax()))
    return text[len(prompt) :]


def test_prompts_are_read_once_if_the_capture_with_a_processor_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = save("mamba2", HYBRIDS["mamba2"], tmp_path)

    def failing(iteration: Iteration) -> None:
        if iteration.plan.processors.captured:
            raise RuntimeError("no memory")
        decode_step(iteration)

    def same(rows: object, logits: torch.Tensor, stream: object) -> torch.Tensor:
        return logits

    same.allows_capture = True  # type: ignore[attr-defined]
    monkeypatch.setattr(graphs, "decode_step", failing)
    system = [(i * 7 + 5) % 90 + 10 for i in range(24)]
    prompts = [[*system, 40, 41, 42, 43, 44], [*system, 50, 51, 52, 53, 54, 55]]
    engine = EngineConfig(max_batch=4, max_seq_len=128, page_size=8)
    with LLM(tmp_path, device="cpu", engine=engine) as llm:
        llm.generate([*system, 60], SamplingParams(max_tokens=2))  # the prompts begin with its state
        hits = llm.engine.kv.usage().snapshot_hits
        outputs = llm.generate(
            prompts,
            SamplingParams(max_tokens=6, temperature=0, min_tokens=6),
            logits_processor=[LogitsProcessor("same", same), None],
        )
        assert llm.engine.kv.usage().snapshot_hits == hits + 2
    assert "no memory" in str(outputs[0].error)
    assert outputs[1].token_ids == likeliest(network, prompts[1], 6)
