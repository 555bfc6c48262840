"""Qwen2: Llama with biases in the query, key and value projections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from weft.models.llama import Llama


class Qwen2(Llama):
    """The Qwen2 decoder; methods and outputs are those of `Llama`."""

    traits: ClassVar[Mapping[str, bool]] = {
        "attention_bias": True,
        "output_bias": False,
        "mlp_bias": False,
        "windowed": True,
    }
