"""GLM-4 MoE Lite: DeepSeek-V3 with a list of the layers that have mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.fields import Fields
from weft.models.latent import LatentDecoder
from weft.models.mixture_config import deepseek_v3_mixture


class Glm4MoeLite(LatentDecoder):
    """See `Decoder`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 202752,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": 768,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "n_routed_experts": 64,
        "n_shared_experts": 1,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1536,
        "routed_scaling_factor": 1.8,
    }

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        kinds = fields.layer_kinds("mlp_layer_types", "dense", "sparse") or ["dense"]
        dense = tuple(layer for layer, kind in enumerate(kinds) if kind == "dense")
        return {**super().parse_switches(fields), "mixture": deepseek_v3_mixture(fields, dense)}
