"""Qwen3-MoE: Qwen3 with mixtures of experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.config import MixtureConfig, ModelConfig
from weft.models.fields import Fields
from weft.models.qwen3 import Qwen3
from weft.ops.routing import Choice


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
        return super().parse_config({**data, "layer_types": None, "max_window_layers": 0}, where)

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        return {"mixture": parse_mixture(fields)}


def parse_mixture(fields: Fields, *, has_shared: bool = False) -> MixtureConfig:
    """Parse the mixture of a Qwen model. `has_shared`: a shared expert with a gate serves each token. It is stored as
    several experts of the size of the others."""
    step = fields.integer("decoder_sparse_step", 1)
    dense = fields.data.get("mlp_only_layers") or []
    num_layers, inner = fields.integer("num_hidden_layers"), fields.integer("moe_intermediate_size")
    if not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise fields.error("mlp_only_layers", f"is {dense!r}; it must be a list of layers' numbers")
    key, shared_key = "num_experts", "shared_expert_intermediate_size"
    if key not in fields.data:
        key = "num_local_experts"
    shared = fields.integer(shared_key) if has_shared else 0
    if shared % inner:
        raise fields.unsupported(
            shared_key, f"is {shared}; weft runs multiples of 'moe_intermediate_size', which is {inner}"
        )
    return MixtureConfig(
        fields.integer(key),
        inner,
        Choice(
            fields.integer("num_experts_per_tok"),
            renormalize=fields.flag("norm_topk_prob"),
            num_shared=shared // inner,
            shared_gate=has_shared,
        ),
        tuple(layer for layer in range(num_layers) if layer in dense or (layer + 1) % step),
        shared="shared_expert" if has_shared else "",
        shared_gate="shared_expert_gate" if has_shared else "",
    )
