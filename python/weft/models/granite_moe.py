"""Granite-MoE: Granite with a mixture of experts in each layer."""

from __future__ import annotations

from typing import Any

from weft.models.config import MixtureConfig
from weft.models.fields import Fields
from weft.models.granite import Granite
from weft.ops.routing import Choice, Scores


class GraniteMoe(Granite):
    """See `Decoder`."""

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        switches = super().parse_switches(fields)
        choice = Choice(
            fields.integer("num_experts_per_tok", 2), Scores.TOP_SOFTMAX, scale=switches["residual_scale"]
        )
        mixture = MixtureConfig(
            fields.integer("num_local_experts", 8),
            fields.integer("intermediate_size"),
            choice,
            name="block_sparse_moe",
            router="router.layer",
            projections=("input_linear.weight", "output_linear.weight"),
        )
        return {**switches, "mixture": mixture}
