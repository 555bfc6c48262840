"""Mistral: Llama without biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.config import ModelConfig
from weft.models.decoder import Decoder


class Mistral(Decoder):
    """The Mistral decoder; methods and outputs are those of `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        "attention_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "windowed": True,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    }

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        # All layers have the window, as in transformers, whatever the key names.
        return super().parse_config({**data, "layer_types": None}, where)
