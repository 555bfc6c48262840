"""OLMo 3: OLMo 2 with windows in most layers, whose rotation is not scaled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.models.olmo2 import Olmo2


class Olmo3(Olmo2):
    """See `Decoder`."""

    traits: ClassVar[Mapping[str, Any]] = {
        **Olmo2.traits,
        "windowed": True,
        "full_every": 4,
        "two_ropes": True,
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        **Olmo2.defaults,
        "sliding_window": 4096,
        "rope_theta": 5e5,
        "rope_local_base_freq": 5e5,
    }
