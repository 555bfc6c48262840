"""OLMoE: mixtures of experts, with norms over the queries of all heads and over the keys of all heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.config import MixtureConfig
from weft.models.decoder import Decoder
from weft.models.fields import Fields
from weft.ops.routing import Choice


class Olmoe(Decoder):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {"qk_norm": True, "qk_norm_spans_heads": True}
    defaults: ClassVar[Mapping[str, Any]] = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        fields.must_be("clip_qkv")
        choice = Choice(
            fields.integer("num_experts_per_tok", 8), renormalize=fields.flag("norm_topk_prob", False)
        )
        mixture = MixtureConfig(
            fields.integer("num_experts", 64), fields.integer("intermediate_size"), choice
        )
        return {"mixture": mixture}
