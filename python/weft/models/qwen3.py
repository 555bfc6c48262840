"""Qwen3: Llama that normalises queries and keys by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from weft.models.llama import Llama


class Qwen3(Llama):
    """See `Llama`."""

    traits: ClassVar[Mapping[str, bool]] = {"mlp_bias": False, "qk_norm": True, "windowed": True}
