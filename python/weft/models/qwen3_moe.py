"""Qwen3-MoE: Qwen3 with mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models.config import MixtureConfig, ModelConfig, parse_decoder
from weft.models.fields import Fields
from weft.models.qwen3 import Qwen3
from weft.ops.routing import Choice


class Qwen3Moe(Qwen3):
    """See `Decoder`."""

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        return parse_decoder(data, where, mixture=parse_mixture(Fields(data, where)), **cls.traits)


def parse_mixture(fields: Fields, **more: Any) -> MixtureConfig:
    """Parse the mixture of a Qwen model. `more` are other fields of `MixtureConfig`, and `num_shared` and
    `shared_gate` of `Choice`."""
    step = fields.integer("decoder_sparse_step", 1)
    dense = fields.data.get("mlp_only_layers") or []
    num_layers = fields.integer("num_hidden_layers")
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise fields.error("mlp_only_layers", f"is {dense!r}; it must be a list of layers' numbers")
    key = "num_experts" if "num_experts" in fields.data else "num_local_experts"
    return MixtureConfig(
        fields.integer(key),
        fields.integer("moe_intermediate_size"),
        Choice(fields.integer("num_experts_per_tok"), renormalize=fields.flag("norm_topk_prob")),
        tuple(layer for layer in range(num_layers) if layer in dense or (layer + 1) % step),
        **more,
    )
