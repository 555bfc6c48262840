"""MiMo: the decoder of Qwen2; its multi-token-prediction layers are the drafter `mtp`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from weft.models.llama import Llama


class MiMo(Llama):
    """See `Llama`."""

    traits: ClassVar[Mapping[str, bool]] = {
        "attention_bias": True,
        "output_bias": False,
        "mlp_bias": False,
        "windowed": True,
    }
