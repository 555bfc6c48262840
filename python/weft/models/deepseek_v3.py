"""DeepSeek-V3: latent attention, and mixtures of experts chosen in groups by sigmoids."""

from __future__ import annotations

from typing import Any

from weft.models.fields import Fields
from weft.models.latent import LatentDecoder
from weft.models.mixture_config import deepseek_v3_mixture, first_layers


class DeepseekV3(LatentDecoder):
    """See `Decoder`."""

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        mixture = deepseek_v3_mixture(fields, first_layers(fields, 3))
        return {**super().parse_switches(fields), "mixture": mixture}
