"""Models with random weights, without a checkpoint."""

from __future__ import annotations

import torch

from weft.models.base import Model
from weft.models.config import ModelConfig
from weft.models.random_weights import RandomWeights
from weft.registry import load


def random_model(config: ModelConfig, seed: int = 0, device: torch.device | str = "cpu") -> Model:
    """Make a model of `config.architecture` with `RandomWeights`."""
    with torch.inference_mode():
        model: Model = load("models", config.architecture)(config, RandomWeights(config, seed, device))
    return model
