"""Qwen2-MoE and Qwen1.5-MoE: Qwen2 with mixtures of experts, and a gated MLP in each mixture that all tokens pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.decoder import Decoder
from weft.models.fields import Fields
from weft.models.mixture_config import qwen_mixture


class Qwen2Moe(Decoder):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {"output_bias": False, "mlp_bias": False, "windowed": True}
    defaults: ClassVar[Mapping[str, Any]] = {
        "num_key_value_heads": 16,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
    }

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        if fields.flag("use_sliding_window") and fields.data.get("layer_types") is None:
            # Versions of transformers differ in the layers.
            raise fields.unsupported(
                "use_sliding_window", "is true, and 'layer_types' does not name the layers"
            )
        return {
            "attention_bias": fields.flag("qkv_bias", True),
            "mixture": qwen_mixture(fields, has_shared=True),
        }
