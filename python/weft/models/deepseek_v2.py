"""DeepSeek-V2: latent attention, and mixtures of experts chosen by softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models.config import ModelConfig
from weft.models.deepseek_v3 import shared_mixture
from weft.models.fields import Fields
from weft.models.latent import LatentDecoder, parse_latent


class DeepseekV2(LatentDecoder):
    """See `Decoder`."""

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        fields = Fields(data, where)
        fields.must_be("topk_method", "greedy", "group_limited_greedy")
        fields.must_be("scoring_func", "softmax")
        fields.must_be("norm_topk_prob", False)
        fields.must_be("mlp_bias", False)
        choice: dict[str, Any] = {}
        if data.get("topk_method") == "group_limited_greedy":
            groups = fields.integer("n_group")
            choice = {"num_groups": groups, "num_top_groups": fields.integer("topk_group")}
        dense = fields.integer("first_k_dense_replace", 0, least=0)
        mixture = shared_mixture(fields, tuple(range(dense)), **choice)
        return parse_latent(data, where, mixture=mixture, adjacent_pairs=True)
