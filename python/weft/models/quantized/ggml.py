"""Matrices of GGUF files: rows of ggml's blocks, which weft's formats of the same names are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from weft.models.gguf.names import QUANTIZED
from weft.models.quantized.method import Blocks, Method, Parts
from weft.ops.formats import Format


@dataclass(frozen=True)
class Ggml(Method):
    """The quantised matrices of a GGUF file, which mixes types. Each is one tensor."""

    title: ClassVar[str] = "GGUF's types"
    copies_embeddings: ClassVar[bool] = True

    def holds(self, parts: Parts, name: str) -> bool:
        return parts.dtype_of(name) in QUANTIZED

    def take(self, parts: Parts, name: str, num_outputs: int, num_inputs: int) -> Blocks:
        rows = parts.take_part(name, QUANTIZED, num_outputs, num_inputs)
        format = Format[parts.dtype_of(name)]
        # MXFP4's factors are powers of 2, and its numbers have few bits. Other factors are float16.
        dtype = torch.bfloat16 if format is Format.MXFP4 else torch.float16
        return Blocks((num_outputs, num_inputs), format, lambda: rows, dtype)
