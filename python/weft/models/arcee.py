"""Arcee: Llama with an MLP that has no gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.decoder import Decoder


class Arcee(Decoder):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {"gated_mlp": False}
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
