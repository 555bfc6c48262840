"""SmolLM3: Llama in which some layers do not rotate queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from weft.models.config import ModelConfig
from weft.models.decoder import Decoder
from weft.models.fields import Fields
from weft.models.rope import FULL, SLIDING


class SmolLM3(Decoder):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {"windowed": True}
    defaults: ClassVar[Mapping[str, Any]] = {
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rope_theta": 2e6,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
    }

    @classmethod
    def parse_config(cls, data: Mapping[str, Any], where: str) -> ModelConfig:
        rotates = _rotating_layers(Fields(data, where))
        kinds = data.get("layer_types") or [FULL if each else SLIDING for each in rotates]
        config = super().parse_config({**data, "layer_types": kinds}, where)
        return replace(config, ropes=tuple(config.rope if each else None for each in rotates))


def _rotating_layers(fields: Fields) -> list[bool]:
    """For each layer, whether it rotates. `no_rope_layers` has 1 for the layers that do."""
    flags = fields.layer_kinds("no_rope_layers", 0, 1)
    if flags is not None:
        return [bool(flag) for flag in flags]
    interval, num_layers = fields.integer("no_rope_layer_interval", 4), fields.integer("num_hidden_layers")
    return [(layer + 1) % interval != 0 for layer in range(num_layers)]
