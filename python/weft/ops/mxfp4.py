"""MXFP4: numbers of 4 bits in blocks of 32, each with a power of 2 as its factor.

The 4 bits are a sign, two bits of an exponent and one of a fraction: 0, 0.5, 1, 1.5, 2, 3, 4 and 6, then the negative
ones. A byte holds two numbers, the first in its low half. A factor is a byte s, for 2^(s - 127), or 255 for a block of
NaN. bfloat16 has all these numbers up to infinity.
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft import _core
from weft.ops.huge_pages import temporary

BLOCK = 32
BYTES = BLOCK // 2
"""The numbers and the bytes of a block."""


def widened(blocks: Tensor, scales: Tensor) -> Tensor:
    """The numbers of a matrix, bfloat16 [out, in], on the CPU. Blocks are uint8 [out, in / 32, 16], scales uint8
    [out, in / 32]. Their rows may be apart."""
    num_rows, num_groups = scales.shape
    if blocks.is_meta:
        return blocks.new_empty(num_rows, num_groups * BLOCK, dtype=torch.bfloat16)
    out = temporary((num_rows, num_groups * BLOCK), torch.bfloat16)
    kernel = _core.mxfp4_cpu(
        blocks.data_ptr(), scales.data_ptr(), out.data_ptr(), num_rows, num_groups, blocks.stride(0), scales.stride(0)
    )  # fmt: skip
    kernel.run()
    return out
