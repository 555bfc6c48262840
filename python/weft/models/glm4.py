"""GLM-4: Llama with norms before and after each part of a layer, rotation of adjacent pairs, and fused gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.config import NormNames
from weft.models.decoder import Decoder


class Glm4(Decoder):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        "output_bias": False,
        "mlp_bias": False,
        "partial_rotary": True,
        "adjacent_pairs": True,
        "fused_gate_up": True,
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
