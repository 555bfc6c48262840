"""Quantised matrices of random bytes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

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


def _halves(data: Tensor) -> Tensor:
    """The 32 codes in each 16 bytes [..., 16]."""
    return torch.cat([data & 15, data >> 4], -1)


def _bits(data: Tensor, bit: int | Tensor) -> Tensor:
    return data >> bit & 1


def codes_of(matrix: Quantized) -> tuple[Tensor, list[Tensor]]:
    """The codes of a matrix, uint8 [out, blocks, inputs], and the bytes of each number beside them, uint8 [out, blocks,
    bytes]."""
    kind, size = matrix.format, matrix.format.block.inputs
    blocks = matrix.data.unflatten(1, (-1, kind.block.bytes))
    every = torch.arange(8, dtype=torch.uint8)

    def part(begin: int, count: int) -> Tensor:
        return blocks[..., begin : begin + count]

    def high_bits(begin: int) -> Tensor:  # of 32 inputs, in 4 bytes
        return _bits(part(begin, 4)[..., None], every).flatten(-2)

    match kind:
        case Format.Q4_0 | Format.IQ4_NL:
            return _halves(part(2, 16)), [part(0, 2)]
        case Format.Q4_1:
            return _halves(part(4, 16)), [part(0, 2), part(2, 2)]
        case Format.Q5_0:
            return _halves(part(6, 16)) | high_bits(2) << 4, [part(0, 2)]
        case Format.Q5_1:
            return _halves(part(8, 16)) | high_bits(4) << 4, [part(0, 2), part(2, 2)]
        case Format.MXFP4:
            return _halves(part(1, 16)), [part(0, 1)]
        case Format.Q4_K | Format.Q5_K:
            first, second, third = (part(4 + i, 4) for i in (0, 4, 8))
            scales = torch.cat([first & 63, third & 15 | first >> 2 & 48], -1)
            mins = torch.cat([second & 63, third >> 4 | second >> 2 & 48], -1)
            low = part(blocks.shape[-1] - 128, 128).unflatten(-1, (4, 1, 32))
            codes = torch.cat([low & 15, low >> 4], -2).flatten(-3)
            if kind is Format.Q5_K:
                codes = codes | (_bits(part(16, 32)[..., None, :], every[:, None]) << 4).flatten(-2)
            numbers = [*scales.split(1, -1), *mins.split(1, -1), part(0, 2), part(2, 2)]
            return codes, numbers
        case Format.Q6_K:
            low = part(0, 128).unflatten(-1, (2, 1, 64))
            high = part(128, 64).unflatten(-1, (2, 1, 32)) >> 2 * every[:4, None] & 3
            codes = torch.cat([low & 15, low >> 4], -2).flatten(-2) | high.flatten(-2) << 4
            return codes.flatten(-2), [*part(192, 16).split(1, -1), part(208, 2)]
        case Format.INT4_32 | Format.INT4_64 | Format.INT4_128:
            return _halves(part(8, size // 2).unflatten(-1, (-1, 16))).flatten(-2), [part(0, 4), part(4, 1)]
        case Format.Q8_0:
            return part(2, size) ^ 0x80, [part(0, 2)]
        case Format.FP8:
            return part(4, size), [part(0, 4)]
        case _:
            return part(4, size) ^ 0x80, [part(0, 4)]


def _panel_order(words: Tensor) -> Tensor:
    """Words [out, blocks, subs, words, bytes] in the order of panels: [out / 32, blocks, subs, 2, words, 16, bytes]."""
    return words.unflatten(0, (-1, 2, 16)).permute(0, 3, 4, 1, 5, 2, 6)


def panels_of(matrix: Quantized) -> Tensor:
    """The panels of a matrix [out, in], uint8 [panels, bytes], as formats.h describes them."""
    codes, numbers = codes_of(matrix)
    missing = -len(codes) % 64
    codes = F.pad(codes, (0, 0, 0, 0, 0, missing))
    numbers = [F.pad(number, (0, 0, 0, 0, 0, missing)) for number in numbers]
    kind, num_blocks = matrix.format, codes.shape[1]
    subs = codes.unflatten(2, (-1, 32))
    parts: list[Tensor] = []
    if kind is Format.FP8:
        parts.append(codes.unflatten(0, (-1, 32)).permute(0, 2, 3, 1))
    elif kind in (Format.Q8_0, Format.INT8_32, Format.INT8_128):
        parts.append(_panel_order(subs.unflatten(3, (8, 4))))
    else:
        low = subs & 15
        parts.append(_panel_order((low[..., :16] | low[..., 16:] << 4).unflatten(3, (4, 4))))
        planes = [_bits(subs, 4 + plane) for plane in range(_PLANES.get(kind, 0))]
        if planes:
            bits = torch.stack([_panel_order(plane.unflatten(3, (8, 4))) for plane in planes], 4)
            weights = 1 << torch.arange(8, dtype=torch.uint8)
            parts.append((bits.flatten(-2).unflatten(-1, (8, 8)) * weights).sum(-1, dtype=torch.uint8))
    parts += [number.unflatten(0, (-1, 32)).transpose(1, 2) for number in numbers]
    halves = torch.cat([part.reshape(-1, num_blocks, part[0, 0].numel()) for part in parts], 2)
    halves = F.pad(halves, (0, kind.block.half_bytes - halves.shape[2]))
    return halves.reshape(-1, 2 * num_blocks * kind.block.half_bytes)


_PLANES = {Format.Q5_0: 1, Format.Q5_1: 1, Format.Q5_K: 1, Format.Q6_K: 2}
