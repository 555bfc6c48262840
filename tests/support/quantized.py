"""Quantised matrices of random bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.ops.formats import Format
from weft.ops.quantized import Quantized

GGUF = tuple(kind for kind in Format if Format.Q4_0 <= kind <= Format.MXFP4)
OTHERS = tuple(kind for kind in Format if kind > Format.MXFP4)
QUANTIZED = (*GGUF, *OTHERS)

_HALVES = {  # where blocks have numbers in float16
    Format.Q4_0: (0,),
    Format.Q4_1: (0, 2),
    Format.Q5_0: (0,),
    Format.Q5_1: (0, 2),
    Format.Q8_0: (0,),
    Format.IQ4_NL: (0,),
    Format.Q4_K: (0, 2),
    Format.Q5_K: (0, 2),
    Format.Q6_K: (208,),
}


def random_blocks(
    kind: Format, num_outputs: int, num_inputs: int, *, seed: int = 0, has_special: bool = False
) -> Quantized:
    """A matrix [num_outputs, num_inputs] of random bytes, with scales of a few thousandths. With `has_special` some
    scales are infinite, NaN, zero or tiny."""
    generator = torch.Generator().manual_seed(1000 * kind + seed)
    block = kind.block
    blocks = -(-num_inputs // block.inputs)

    def scales(dtype: torch.dtype) -> Tensor:
        numbers = torch.randn(num_outputs, blocks, generator=generator) * 0.01
        if has_special:
            special = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1e-7])
            which = torch.randint(12, numbers.shape, generator=generator)
            numbers = torch.where(which < 6, special[which.clamp(max=5)], numbers)
        return numbers.to(dtype)[..., None].view(torch.uint8)

    data = torch.randint(256, (num_outputs, blocks, block.bytes), generator=generator, dtype=torch.uint8)
    if kind is Format.MXFP4:
        low, high = (0, 256) if has_special else (110, 122)
        data[..., 0] = torch.randint(low, high, data.shape[:2], generator=generator)
        if has_special:
            data[0, 0, 0] = 255
    elif kind in _HALVES:
        for at in _HALVES[kind]:
            data[..., at : at + 2] = scales(torch.float16)
    else:
        data[..., :4] = scales(torch.float32)
        if kind < Format.INT8_32:  # a zero, and padding
            data[..., 4] = torch.randint(17, data.shape[:2], generator=generator)
            data[..., 5:8] = 0
        if kind is Format.FP8 and not has_special:
            codes = data[..., 4:]
            codes[(codes & 127) == 127] = 0
    return Quantized(data.flatten(1), kind, num_inputs)
