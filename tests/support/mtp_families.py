"""Checkpoints of families with a module for multi-token prediction (MTP), which is the last layer of transformers'
network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.families import DELTA, LATENT, save

HIDDEN, LAYERS = 64, 3
PARTS = {"embedding": "enorm", "hidden": "hnorm", "projection": "eh_proj", "output": "shared_head.norm"}
QWENS = {
    "embedding": "pre_fc_norm_embedding",
    "hidden": "pre_fc_norm_hidden",
    "projection": "fc",
    "output": "norm",
}


@dataclass(frozen=True)
class Family:
    """A family's settings, the names of a module's parts, and the prefixes of the parts and of the layer."""

    settings: dict[str, Any]
    names: dict[str, str]
    prefix: str = f"model.layers.{LAYERS}."
    layer: str = f"model.layers.{LAYERS}."
    norm_offset: float = 0.0


KINDS = ["linear_attention", "full_attention"] * 2
FAMILIES = {
    "deepseek_v3": Family(LATENT, PARTS),
    "glm4_moe_lite": Family({**LATENT, "mlp_layer_types": ["dense", *["sparse"] * LAYERS]}, PARTS),
    "qwen3_next": Family({**DELTA, "layer_types": KINDS}, QWENS, "mtp.", "mtp.layers.0.", 1.0),
}


def save_with_module(path: Path, name: str) -> tuple[Any, dict[str, Tensor]]:
    """Save a checkpoint with a module. Returns transformers' network, whose last layer is the module's, and the other
    parts of the module."""
    family = FAMILIES[name]
    network = save(
        name, {**family.settings, "num_hidden_layers": LAYERS + 1, "tie_word_embeddings": False}, path
    )
    generator = torch.Generator().manual_seed(5)
    parts = {part: torch.randn(HIDDEN, generator=generator) * 0.3 for part in PARTS}
    parts = {part: weight + 1 - family.norm_offset for part, weight in parts.items()}
    parts["projection"] = torch.randn(HIDDEN, 2 * HIDDEN, generator=generator) * 0.2
    tensors = load_file(path / "model.safetensors")
    last = f"model.layers.{LAYERS}."
    tensors = {
        family.layer + key.removeprefix(last) if key.startswith(last) else key: t
        for key, t in tensors.items()
    }
    tensors |= {f"{family.prefix}{family.names[part]}.weight": weight for part, weight in parts.items()}
    save_file(tensors, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config["num_hidden_layers"] = LAYERS
    if name != "qwen3_next":  # has a module, and does not say so
        config["num_nextn_predict_layers"] = 1
    for key in ("layer_types", "mlp_layer_types"):
        if isinstance(config.get(key), list):
            config[key] = config[key][:LAYERS]
    (path / "config.json").write_text(json.dumps(config))
    return network, parts
