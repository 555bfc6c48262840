"""Granite: Llama with factors of embeddings, attention scores, layers' outputs and logits."""

from __future__ import annotations

from typing import Any

from weft.models.decoder import Decoder
from weft.models.fields import Fields


class Granite(Decoder):
    """See `Decoder`."""

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        return {
            "embedding_scale": fields.number("embedding_multiplier", 1.0),
            "attention_scale": fields.number("attention_multiplier", 1.0),
            "residual_scale": fields.number("residual_multiplier", 1.0),
            "logit_scale": 1.0 / fields.number("logits_scaling", 1.0),
        }
