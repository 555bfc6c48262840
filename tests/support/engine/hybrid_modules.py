"""Multi-token-prediction modules for checkpoints of Qwen3-Next and Qwen3.5, with transformers' layers as reference."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


class PlainModule(nn.Module):
    """A module for a transformers network: a copy of its last layer, which has attention, between a projection and
    norms. `spread` is that of random numbers which are added to the copies and to the projection. Without it the module
    reads the embedding alone."""

    def __init__(self, network: Any, spread: float) -> None:
        super().__init__()
        text = getattr(network.model, "language_model", network.model)
        hidden = network.get_input_embeddings().weight.shape[1]
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            copy.deepcopy(text.norm) for _ in range(3)
        )
        self.layers = nn.ModuleList([copy.deepcopy(text.layers[-1])])
        self.rotary = copy.deepcopy(text.rotary_emb)
        torch.manual_seed(3)
        with torch.no_grad():
            self.pre_fc_norm_embedding.weight.zero_()  # a factor of 1
            self.fc.weight.copy_(torch.cat((torch.eye(hidden), torch.zeros(hidden, hidden)), 1))
            for parameter in self.parameters():
                parameter.add_(torch.randn_like(parameter) * spread)

    @torch.inference_mode()
    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Outputs [L, H] of one text's entries [L, H] from position 0, after the output norm."""
        both = torch.cat((self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)), -1)
        x = self.fc(both)[None]
        positions = torch.arange(len(embedded))[None]
        mask = torch.full((len(embedded), len(embedded)), float("-inf")).triu(1)[None, None]
        turns = self.rotary(x, positions)
        x = self.layers[0](x, position_embeddings=turns, attention_mask=mask, position_ids=positions)
        output: Tensor = self.norm(x)[0]
        return output


def add_module(path: Path, module: PlainModule) -> None:
    """Add the module's tensors to the checkpoint of its network. The matrices of all experts are one tensor, as in
    transformers' network."""
    tensors = load_file(path / "model.safetensors")
    tensors |= {f"mtp.{name}": tensor.contiguous() for name, tensor in module.state_dict().items()}
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
