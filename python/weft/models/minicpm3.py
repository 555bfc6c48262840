"""MiniCPM3: latent attention, an MLP in each layer, and scaled embeddings, parts and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models.config import ModelConfig
from weft.models.fields import Fields
from weft.models.latent import LatentDecoder, parse_latent


class MiniCPM3(LatentDecoder):
    """See `Decoder`."""

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        fields = Fields(data, where)
        hidden, num_layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers")
        data = {"tie_word_embeddings": True, **data}
        if data.get("v_head_dim") is None:
            data["v_head_dim"] = hidden // fields.integer("num_attention_heads")
        return parse_latent(
            data,
            where,
            adjacent_pairs=False,
            mlp_bias=fields.flag("mlp_bias"),
            embedding_scale=fields.number("scale_emb", 12.0),
            residual_scale=fields.number("scale_depth", 1.4) / num_layers**0.5,
            logit_scale=fields.integer("dim_model_base", 256) / hidden,
        )
