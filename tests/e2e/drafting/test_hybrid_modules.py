"""Targets with recurrent layers, drafted for by the MTP module in their checkpoint: Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.engine.drafting_requests import GUIDED, ROWS, run
from support.engine.hybrid_modules import PlainModule, add_module
from support.families import HYBRIDS, save
from weft import LLM, EngineConfig, Output, Speculation

FAMILIES = ["qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe_text"]


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target whose next token depends mostly on its last one, and a module that depends on it alone, so that the
    target accepts many drafts, and not all."""
    path: Path = tmp_path_factory.mktemp("hybrid")
    network = save(request.param, HYBRIDS[request.param], path)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if any(part in name for part in ("o_proj", "out_proj", "down_proj")):
                parameter.mul_(0.1)
    network.save_pretrained(path)
    add_module(path, PlainModule(network, 0.0))
    return path


@pytest.fixture(scope="module")
def plain(checkpoint: Path, prompts: list[str]) -> list[Output]:
    """The answers without speculation. The module's tensors have no use then."""
    with LLM(checkpoint, device="cpu", engine=EngineConfig(max_batch=5, max_seq_len=512)) as llm:
        return run(llm, prompts)


@pytest.mark.parametrize(
    ("graphs", "batch", "num_drafts"), [("one", 5, 3), ("one", 1, 2), ("none", 3, 1), ("split", 8, 5)]
)
def test_tokens_are_those_without_speculation(
    checkpoint: Path, prompts: list[str], plain: list[Output], graphs: Any, batch: int, num_drafts: int
) -> None:
    sizes = {"page_size": 8, "prefill_chunk": 24, "num_pages": 512, "num_snapshots": 4 * len(ROWS)}
    engine = EngineConfig(max_batch=batch, max_seq_len=512, graphs=graphs, **sizes)
    speculation = Speculation.mtp(num_draft_tokens=num_drafts)
    with LLM(checkpoint, device="cpu", speculation=speculation, engine=engine) as llm:
        outputs = run(llm, prompts)
        again = run(llm, prompts)  # behind prefixes that are found
        replays, iterations = llm.num_graph_replays, llm.num_iterations
    for answers in (outputs, again):
        for output, wanted, (guide, temperature) in zip(answers, plain, ROWS, strict=True):
            assert output.token_ids == wanted.token_ids, f"guide {GUIDED[guide]}, temperature {temperature}"
    assert sum(output.stats.reused_tokens for output in again) > 0
    accepted = sum(output.stats.accepted_drafts for output in outputs)
    assert 0 < accepted < sum(output.stats.proposed_drafts for output in outputs)
    assert iterations and (replays >= iterations if graphs != "none" else not replays)
