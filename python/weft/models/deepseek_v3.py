"""DeepSeek-V3: latent attention, and mixtures of experts chosen in groups by sigmoids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.config import MTP_KEY
from weft.models.fields import Fields
from weft.models.latent import LatentDecoder
from weft.models.mixture_config import deepseek_v3_mixture, first_layers


class DeepseekV3(LatentDecoder):
    """See `Decoder`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        **LatentDecoder.defaults,
        "max_position_embeddings": 4096,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "moe_intermediate_size": 2048,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        MTP_KEY: 1,
    }

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        mixture = deepseek_v3_mixture(fields, first_layers(fields))
        return {**super().parse_switches(fields), "mixture": mixture}
