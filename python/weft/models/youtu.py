"""Youtu: latent attention, and an MLP in each layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.latent import LatentDecoder


class Youtu(LatentDecoder):
    """See `Decoder`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        **LatentDecoder.defaults,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    }
