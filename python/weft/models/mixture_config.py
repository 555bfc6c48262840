"""The configs of mixtures that several families have, parsed from config.json: Qwen's and DeepSeek's."""

from __future__ import annotations

from typing import Any

from weft.models.config import MixtureConfig
from weft.models.fields import Fields
from weft.ops.routing import Choice, Scores


def qwen_mixture(fields: Fields, *, has_shared: bool = False) -> MixtureConfig:
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


def deepseek_mixture(
    fields: Fields, dense_layers: tuple[int, ...], choice_bias: str = "", **choice: Any
) -> MixtureConfig:
    """Parse the mixture of a DeepSeek model. `choice` are further fields of `Choice`."""
    fields.must_be("moe_layer_freq", 1)
    count, top_k = fields.integer("n_routed_experts"), fields.integer("num_experts_per_tok")
    groups, top_groups = choice.get("num_groups", 1), choice.get("num_top_groups", 1)
    if count % groups or count // groups < choice.get("group_top", 1):
        raise fields.error("n_group", f"is {groups}; {count} experts can't be divided into these groups")
    if top_groups > groups:
        raise fields.error("topk_group", f"is {top_groups}; there are {groups} groups")
    if top_k > count // groups * top_groups:
        raise fields.error(
            "num_experts_per_tok",
            f"is {top_k}; the chosen groups have {count // groups * top_groups} experts",
        )
    shared = fields.integer("n_shared_experts", 0, least=0)
    scale = fields.number("routed_scaling_factor", 1.0)
    return MixtureConfig(
        count,
        fields.integer("moe_intermediate_size"),
        Choice(top_k, scale=scale, num_shared=shared, **choice),
        dense_layers,
        shared="shared_experts" if shared else "",
        choice_bias=choice_bias,
    )


def deepseek_v3_mixture(fields: Fields, dense_layers: tuple[int, ...]) -> MixtureConfig:
    """Parse the mixture of a model that chooses experts as DeepSeek-V3 does, in groups by sigmoids."""
    fields.must_be("topk_method", "noaux_tc")
    fields.must_be("scoring_func", "sigmoid")
    groups = fields.integer("n_group", 1)
    return deepseek_mixture(
        fields,
        dense_layers,
        choice_bias="gate.e_score_correction_bias",
        scores=Scores.SIGMOID,
        renormalize=fields.flag("norm_topk_prob", True),
        num_groups=groups,
        num_top_groups=fields.integer("topk_group", groups),
        group_top=2,
    )


def first_layers(fields: Fields) -> tuple[int, ...]:
    """Parse the layers that have an MLP in place of a mixture."""
    count = fields.integer("first_k_dense_replace", least=0)
    return tuple(range(min(count, fields.integer("num_hidden_layers"))))
