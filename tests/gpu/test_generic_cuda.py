"""Families on a GPU, by weft's modules and by transformers' code: the answers are transformers'.

A model that transformers' code runs was compared with it at loading, too (`models/generic/probe.py`).
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from support.families import FAMILIES, HYBRIDS, save
from support.generic import without_modules
from weft import LLM, EngineConfig, SamplingParams, Speculation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SETTINGS = {**FAMILIES, **HYBRIDS}
CHOSEN = (
    *("gemma3_text", "gpt2", "gpt_oss", "deepseek_v3", "mixtral"),
    *("qwen3_next", "lfm2", "mamba", "bamba", "falcon_h1"),
)
PROMPTS = [[5, 9, 33, 71, 20], list(range(20, 60)), [40, 41], [77]]
NUM_TOKENS = 16
TIE = 1e-3
"""The difference of two logits up to which either token may come first."""


@pytest.mark.parametrize("speculation", [Speculation.none(), Speculation.ngram(num_draft_tokens=3)], ids=str)
@pytest.mark.parametrize("modules", ["weft", "transformers"])
@pytest.mark.parametrize("family", CHOSEN)
def test_tokens_are_those_of_transformers(
    family: str, modules: str, speculation: Speculation, tmp_path: Path
) -> None:
    network = save(family, SETTINGS[family], tmp_path).to("cuda")
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0)
    config = EngineConfig(max_batch=4, max_seq_len=128)
    with (
        without_modules() if modules == "transformers" else nullcontext(),
        LLM(tmp_path, device="cuda", dtype="float32", engine=config, speculation=speculation) as llm,
    ):
        first = [output.token_ids for output in llm.generate(PROMPTS, sampling)]
        again = [output.token_ids for output in llm.generate(PROMPTS, sampling)]  # with cached prefixes
    for answers in (first, again):
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            check(network, prompt, answer)


def check(network: Any, prompt: list[int], answer: list[int]) -> None:
    """Assert that each token is the likeliest one after those before it, or within a tie."""
    text = torch.tensor([[*prompt, *answer]], device="cuda")
    with torch.inference_mode():
        logits = network(input_ids=text, use_cache=False).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(answer, device="cuda")[:, None])[:, 0]
    assert (logits.max(1).values - chosen).max().item() < TIE
