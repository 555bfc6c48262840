"""Gemma 3: Gemma 2 with norms of queries and keys, and a rotation of their own for layers with windows.

A model with an image encoder reads text only, and its encoder is not loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from weft.models.base import WeightSource
from weft.models.config import ModelConfig
from weft.models.fields import Fields
from weft.models.gemma2 import Gemma2
from weft.models.text import TextWeights, text_config


class Gemma3(Gemma2):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        **Gemma2.traits,
        "qk_norm": True,
        "full_every": 6,
        "two_ropes": True,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        **Gemma2.defaults,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    }

    @classmethod
    def parse_switches(cls, fields: Fields) -> dict[str, Any]:
        # Gemma 3's attention has no soft cap, whatever the file has.
        return {**super().parse_switches(fields), "attention_softcap": 0.0}


class Gemma3Conditional(Gemma3):
    """Gemma 3 with an image encoder, which is left aside. See `Decoder`."""

    defaults: ClassVar[Mapping[str, Any]] = {
        **Gemma3.defaults,
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
    }

    def __init__(self, config: ModelConfig, weights: WeightSource) -> None:
        encoder = "vision_tower.", "multi_modal_projector."
        super().__init__(config, TextWeights(weights, encoder, config.tie_word_embeddings))

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        config = super().parse_config(*text_config(data, where, is_tied=True))
        return replace(config, logit_softcap=0.0)  # here transformers' code has none
