"""The MTP module of Qwen3.5 against transformers' layers: gated attention, with an MLP or a mixture."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from support.engine.drafting import PAGE, PAGES, SLOTS, Drafting
from support.engine.hybrid_modules import PlainModule, add_module
from support.families import HYBRIDS, save
from weft.config import Speculation
from weft.models.loading import load_model
from weft.spec.base import DrafterContext
from weft.spec.mtp import Mtp

FAMILIES = ["qwen3_5", "qwen3_5_text", "qwen3_5_moe_text"]


def load(path: Path) -> Mtp:
    target, speculation = load_model(path), Speculation.mtp(num_draft_tokens=3)
    drafter = Mtp.load(
        DrafterContext(speculation, path, target, SLOTS, SLOTS * PAGES + 1, PAGE, PAGES * PAGE)
    )
    assert isinstance(drafter, Mtp)
    return drafter


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_those_of_a_plain_module(family: str, tmp_path: Path) -> None:
    network = save(family, HYBRIDS[family], tmp_path)
    module = PlainModule(network, 0.2)
    add_module(tmp_path, module)
    embedding, head = network.get_input_embeddings().weight, network.get_output_embeddings()

    def oracle(tokens: Tensor, hidden: Tensor, drafts: list[int]) -> Tensor:
        behind = tokens[1:]
        for draft in [*drafts, None]:
            outputs = module(embedding[behind], hidden)
            if draft is not None:
                behind = torch.cat((behind, torch.tensor([draft])))
                hidden = torch.cat((hidden, outputs[-1:]))
        logits: Tensor = head(outputs[-1])
        return logits

    drafter = load(tmp_path)
    assert drafter.aux_layers == (len(HYBRIDS["qwen3_next"]["layer_types"]) + 1,)
    vocab, hidden = embedding.shape
    drafting = Drafting(drafter, drafter.kv, oracle, vocab, hidden, 0)
    drafting.run(3, [0, 3])
    assert drafting.compared > 0
