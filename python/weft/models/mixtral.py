"""Mixtral: Mistral with a mixture of experts in each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models.config import MixtureConfig, ModelConfig, parse_decoder
from weft.models.fields import Fields
from weft.models.mistral import Mistral
from weft.ops.routing import Choice, Scores


class Mixtral(Mistral):
    """See `Decoder`."""

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        fields = Fields(data, where)
        mixture = MixtureConfig(
            fields.integer("num_local_experts", 8),
            fields.integer("intermediate_size"),
            Choice(fields.integer("num_experts_per_tok", 2), Scores.TOP_SOFTMAX),
            name="block_sparse_moe",
            projections=("w1", "w3", "w2"),
        )
        return parse_decoder(data, where, mixture=mixture, **cls.traits)
