"""Mixtral: Mistral with a mixture of experts in each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.config import MixtureConfig
from weft.models.fields import Fields
from weft.models.mistral import Mistral
from weft.ops.routing import Choice, Scores


class Mixtral(Mistral):
    """See `Decoder`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
    }

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        mixture = MixtureConfig(
            fields.integer("num_local_experts", 8),
            fields.integer("intermediate_size"),
            Choice(fields.integer("num_experts_per_tok", 2), Scores.TOP_SOFTMAX),
            name="block_sparse_moe",
            projections=("w1", "w3", "w2"),
        )
        return {"mixture": mixture}
