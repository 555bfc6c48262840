"""MiMo: the decoder of Qwen2. The drafter `mtp` runs its multi-token-prediction (MTP) modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.decoder import Decoder


class MiMo(Decoder):
    """The MiMo decoder; methods and outputs are those of `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        "attention_bias": True,
        "output_bias": False,
        "mlp_bias": False,
        "windowed": True,
    }
