"""Transformers models whose layers attend within windows, by a mask for each layer: the reference for windows and
sinks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


def mask_layers(model: Any, windows: Sequence[int], sinks: int) -> Any:
    """Restrict the layers of a transformers model to windows, and return the model. The cache keeps all keys and
    values, and positions stay those of the text."""
    for i, layer in enumerate(getattr(model.model, "language_model", model.model).layers):
        if not hasattr(layer, "self_attn"):  # a recurrent layer
            continue

        def masked(
            _: Any, args: Any, named: dict[str, Any], layer: int = i, size: int = windows[i % len(windows)]
        ) -> tuple[Any, dict[str, Any]]:
            cache = named.get("past_key_values")
            before = cache.get_seq_length(layer) if cache is not None else 0
            whole = mask(before + named["hidden_states"].shape[1], size, sinks)
            return args, {**named, "attention_mask": whole[:, :, before:]}

        layer.self_attn.register_forward_pre_hook(masked, with_kwargs=True)
    return model


def mask(length: int, size: int, sinks: int) -> Tensor:
    """The mask [1, 1, length, length]: 0 if the row's query attends to the column's key, else the lowest float32."""
    query, key = torch.arange(length)[:, None], torch.arange(length)[None, :]
    seen = (key <= query) & ((key < sinks) | (query - key < size - sinks))
    return torch.zeros(length, length).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]


def windowed_model(path: Path, windows: Sequence[int], sinks: int) -> Any:
    """Load the model of a checkpoint with windows."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    return mask_layers(model.eval(), windows, sinks)
