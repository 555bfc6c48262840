"""Youtu: latent attention, and an MLP in each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.models.config import ModelConfig
from weft.models.latent import LatentDecoder


class Youtu(LatentDecoder):
    """See `Decoder`."""

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        return super().parse_config({"tie_word_embeddings": True, **data}, where)
