"""MiniCPM3: latent attention, an MLP in each layer, and scaled embeddings, parts and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.fields import Fields
from weft.models.latent import LatentConfig, LatentDecoder


class MiniCPM3(LatentDecoder):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {"config_class": LatentConfig, "num_kv_heads": 1}
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "q_lora_rank": 768,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "scale_emb": 12,
        "scale_depth": 1.4,
        "dim_model_base": 256,
    }

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        hidden, num_layers = fields.integer("hidden_size"), fields.integer("num_hidden_layers")
        value = fields.integer("v_head_dim", hidden // fields.integer("num_attention_heads"))
        # A null turns off the scale of parts, and of logits.
        return {
            **super().parse_switches(Fields({**fields.data, "v_head_dim": value}, fields.where)),
            "adjacent_pairs": False,
            "embedding_scale": fields.number("scale_emb"),
            "residual_scale": fields.number("scale_depth", num_layers**0.5) / num_layers**0.5,
            "logit_scale": fields.integer("dim_model_base", hidden) / hidden,
        }
