"""A forward by transformers' code keeps the rule of launched functions: it can be captured on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from support.families import FAMILIES, HYBRIDS, save
from support.generic import without_modules
from support.launch_check import check_launched
from weft.models.base import Model, PagedKV
from weft.models.loading import load_model
from weft.models.states import States
from weft.ops.attention import Rows

SETTINGS = {**FAMILIES, **HYBRIDS}
UNCOPIED = {"biogpt", "gpt_neox", "zamba2", "dbrx", "longcat_flash", "gemma4", "gemma4_text"}
"""Families with modules that the check can't copy to a fake device."""

QUICK = {
    "gemma3_text",
    "gpt2",
    "gpt_oss",
    "deepseek_v3",
    "qwen3_next",
    "lfm2",
    "mamba",
    "bamba",
    "phi3 longrope",
}
CASES = [
    pytest.param(family, marks=() if family in QUICK else pytest.mark.slow)
    for family in sorted(SETTINGS.keys() - UNCOPIED)
]


@pytest.fixture(autouse=True)
def generic() -> Iterator[None]:
    """Let transformers' code run all families."""
    with without_modules():
        yield


class Step:
    """A launched forward of two rows of four tokens, the last three of which are drafts. All that it writes is
    allocated before."""

    def __init__(self, model: Model) -> None:
        config = model.config
        self.model, self.kv = model, PagedKV.for_model(model, 9, 4)
        if config.has_states:
            self.kv.states = States(config.layer_memories, 2, 0, 3, False, "cpu")
        self.page_table = torch.randperm(8).view(2, 4).int() + 1
        self.base, self.slots = torch.tensor([5, 9]), torch.arange(2)
        self.tokens = torch.randint(0, 90, (2, 4))
        self.logits = torch.zeros(2, 4, config.vocab_size)
        self.aux = torch.zeros(2, 4, 2 * config.hidden_size)

    def __call__(self) -> None:
        states = self.kv.states.rows(self.slots, 2) if self.kv.states is not None else None
        rows = Rows(self.page_table, self.base, 4, states=states)
        hidden = self.model.forward(self.tokens, self.kv, rows, (0, 2), self.aux)
        self.model.logits(hidden.last, self.logits)
        self.base.add_(1)


@pytest.mark.parametrize("family", CASES)
def test_forward_keeps_the_rule_of_launched_functions(family: str, tmp_path: Path) -> None:
    save(family, SETTINGS[family], tmp_path)
    with torch.inference_mode():
        check_launched(Step(load_model(tmp_path)))
