"""DeepSeek-V3: latent attention, and mixtures of experts chosen in groups by sigmoids."""

from __future__ import annotations

from typing import Any

from weft.models.config import MixtureConfig
from weft.models.fields import Fields
from weft.models.latent import LatentDecoder
from weft.ops.routing import Choice, Scores


class DeepseekV3(LatentDecoder):
    """See `Decoder`."""

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        mixture = parse_mixture(fields, first_layers(fields, 3))
        return {**super().parse_switches(fields), "mixture": mixture}


def first_layers(fields: Fields, default: int) -> tuple[int, ...]:
    """Parse the layers that have an MLP in place of a mixture."""
    count = fields.integer("first_k_dense_replace", default, least=0)
    return tuple(range(min(count, fields.integer("num_hidden_layers"))))


def parse_mixture(fields: Fields, dense_layers: tuple[int, ...]) -> MixtureConfig:
    """Parse the mixture of a model that chooses experts as DeepSeek-V3 does."""
    fields.must_be("topk_method", "noaux_tc")
    fields.must_be("scoring_func", "sigmoid")
    groups = fields.integer("n_group", 1)
    return shared_mixture(
        fields,
        dense_layers,
        choice_bias="gate.e_score_correction_bias",
        scores=Scores.SIGMOID,
        renormalize=fields.flag("norm_topk_prob", True),
        num_groups=groups,
        num_top_groups=fields.integer("topk_group", groups),
        group_top=2,
    )


def shared_mixture(
    fields: Fields, dense_layers: tuple[int, ...], choice_bias: str = "", **choice: Any
) -> MixtureConfig:
    """Parse a DeepSeek mixture with shared experts. `choice` are further fields of `Choice`."""
    fields.must_be("moe_layer_freq", 1)
    count, top_k = fields.integer("n_routed_experts"), fields.integer("num_experts_per_tok")
    groups, top_groups = choice.get("num_groups", 1), choice.get("num_top_groups", 1)
    if count % groups or count // groups < choice.get("group_top", 1):
        raise fields.error("n_group", f"is {groups}; {count} experts can't be in so many groups")
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
