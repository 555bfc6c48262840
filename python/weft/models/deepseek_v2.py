"""DeepSeek-V2: latent attention, and mixtures of experts chosen by softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.fields import Fields
from weft.models.latent import LatentDecoder
from weft.models.mixture_config import deepseek_mixture, first_layers


class DeepseekV2(LatentDecoder):
    """See `Decoder`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        **LatentDecoder.defaults,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "moe_intermediate_size": 1407,
        "first_k_dense_replace": 0,
    }

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        fields.must_be("topk_method", "greedy", "group_limited_greedy")
        fields.must_be("scoring_func", "softmax")
        fields.must_be("norm_topk_prob", False)
        fields.must_be("mlp_bias", False)
        choice: dict[str, Any] = {}
        if fields.data.get("topk_method") == "group_limited_greedy":
            choice = {"num_groups": fields.integer("n_group"), "num_top_groups": fields.integer("topk_group")}
        mixture = deepseek_mixture(fields, first_layers(fields), **choice)
        return {**super().parse_switches(fields), "mixture": mixture, "adjacent_pairs": True}
