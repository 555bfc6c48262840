"""GLM-4: Llama with norms before and after each part of a layer, rotation of adjacent pairs, and fused gates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor

from weft.models.base import WeightSource
from weft.models.config import ModelConfig, NormNames
from weft.models.decoder import Decoder
from weft.models.layers import MLP, Attention


class Glm4(Decoder):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        "output_bias": False,
        "mlp_bias": False,
        "partial_rotary": True,
        "norm_names": NormNames(
            before_mixer="input_layernorm",
            after_mixer="post_self_attn_layernorm",
            before_mlp="post_attention_layernorm",
            after_mlp="post_mlp_layernorm",
        ),
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "num_key_value_heads": 2,
        "head_dim": 128,
        "attention_bias": True,
        "max_position_embeddings": 131072,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1.5625e-7,
    }

    @classmethod
    def make_mixer(
        cls, config: ModelConfig, weights: WeightSource, prefix: str, layer: int, rotary: Tensor | None
    ) -> Attention:
        # Without a table no rows are reordered: the pairs of the checkpoint are adjacent already.
        attention = Attention(config, weights, f"{prefix}self_attn.", None)
        attention.heads = replace(attention.heads, rotary=rotary)
        return attention

    @classmethod
    def make_mlp(cls, config: ModelConfig, weights: WeightSource, prefix: str, layer: int) -> MLP:
        # Only gates and ups are fused, and not queries, keys and values.
        return MLP(replace(config, fused_projections=True), weights, f"{prefix}mlp.")
