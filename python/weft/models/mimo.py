"""MiMo: the decoder of Qwen2. The drafter `mtp` runs its multi-token-prediction (MTP) modules."""

from __future__ import annotations

from weft.models.qwen2 import Qwen2


class MiMo(Qwen2):
    """The MiMo decoder; methods and outputs are those of `Decoder`."""
