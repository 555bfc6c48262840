"""Qwen3-MoE: Qwen3 with mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.config import ModelConfig
from weft.models.fields import Fields
from weft.models.mixture_config import qwen_mixture
from weft.models.qwen3 import Qwen3


class Qwen3Moe(Qwen3):
    """See `Decoder`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
    }

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        # If there is a window, all layers have it, as in transformers.
        return super().parse_config({**data, "max_window_layers": 0}, where)

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        return {"mixture": qwen_mixture(fields)}
