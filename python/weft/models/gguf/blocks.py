"""Quantized tensors of GGUF files, which are stored in blocks of numbers with common scales."""

from __future__ import annotations

import torch
from torch import Tensor


def dequantized(blocks: Tensor, kind: str) -> Tensor:
    """The numbers of rows of blocks, uint8 [..., bytes of a row] on the CPU, as float32. `kind` is the GGUF type, such
    as "Q4_K"."""
    import gguf.quants  # slow to import

    return torch.from_numpy(gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind]))
