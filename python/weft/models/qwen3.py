"""Qwen3: Llama with a norm for each head's queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from weft.models.llama import Llama


class Qwen3(Llama):
    """The Qwen3 decoder; methods and outputs are those of `Llama`."""

    traits: ClassVar[Mapping[str, bool]] = {"mlp_bias": False, "qk_norm": True, "windowed": True}
