"""MiMo: the decoder of Qwen2. The drafter `mtp` runs its multi-token-prediction (MTP) modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from weft.models.llama import Llama


class MiMo(Llama):
    """The MiMo decoder; methods and outputs are those of `Llama`."""

    traits: ClassVar[Mapping[str, bool]] = {
        "attention_bias": True,
        "output_bias": False,
        "mlp_bias": False,
        "windowed": True,
    }
