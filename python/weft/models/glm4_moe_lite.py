"""GLM-4 MoE Lite: DeepSeek-V3 with a list of the layers that have mixtures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models.config import ModelConfig
from weft.models.deepseek_v3 import parse_mixture
from weft.models.fields import Fields
from weft.models.latent import LatentDecoder, parse_latent


class Glm4MoeLite(LatentDecoder):
    """See `Decoder`."""

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        fields = Fields(data, where)
        num_layers, kinds = fields.integer("num_hidden_layers"), data.get("mlp_layer_types")
        if kinds is None:
            kinds = ["dense"] + ["sparse"] * (num_layers - 1)
        if not isinstance(kinds, list) or len(kinds) != num_layers or not {*kinds} <= {"dense", "sparse"}:
            raise fields.error(
                "mlp_layer_types", f"is {kinds!r}; it must name dense or sparse for each layer"
            )
        dense = tuple(layer for layer, kind in enumerate(kinds) if kind == "dense")
        return parse_latent(data, where, mixture=parse_mixture(fields, dense))
