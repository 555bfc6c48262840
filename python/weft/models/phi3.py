"""Phi-3 and Phi-4: Mistral with fused projections, and rotation of a part of each head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.config import ModelConfig
from weft.models.mistral import Mistral
from weft.models.rope import ORIGINAL

OLD_NAMES = ("su", "yarn")
"""Names of longrope in the first files of these models."""


class Phi3(Mistral):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        **Mistral.traits,
        "fused_qkv": True,
        "fused_gate_up": True,
        "partial_rotary": True,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        ORIGINAL: 4096,
    }

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        for key in ("rope_parameters", "rope_scaling"):
            scaling = data.get(key)
            if isinstance(scaling, dict) and (scaling.get("rope_type") or scaling.get("type")) in OLD_NAMES:
                data = {**data, key: {**scaling, "rope_type": "longrope"}}
        return super().parse_config(data, where)
