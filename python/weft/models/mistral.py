"""Mistral: Llama without biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from weft.models.llama import Llama


class Mistral(Llama):
    """The Mistral decoder; methods and outputs are those of `Llama`."""

    traits: ClassVar[Mapping[str, bool]] = {
        "attention_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "windowed": True,
    }
