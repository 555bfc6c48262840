"""Qwen3: Llama with a norm for each head's queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.decoder import Decoder


class Qwen3(Decoder):
    """The Qwen3 decoder; methods and outputs are those of `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {"mlp_bias": False, "qk_norm": True, "windowed": True}
    defaults: ClassVar[Mapping[str, Any]] = {
        "head_dim": 128,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
    }
