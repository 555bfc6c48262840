"""Qwen2: Llama with biases in the query, key and value projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.decoder import Decoder


class Qwen2(Decoder):
    """The Qwen2 decoder; methods and outputs are those of `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        "attention_bias": True,
        "output_bias": False,
        "mlp_bias": False,
        "windowed": True,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
    }
