"""Quantised matrices on CUDA: the numbers of blocks, apart and in the order in which the kernels read them.
`weft.ops.device_packing` writes them.

Inputs come in groups that share a scale. A group's codes lie side by side for all outputs, so that a tile of outputs
reads whole lines of memory; so do the scales:

    codes   uint8 [M, groups, outputs, bytes]: a byte an input, or half of one. Byte j of a group of G inputs in 4 bits
            has input j in its low half and input j + G / 2 in its high half.
    scales  [M, groups, outputs]
    lows    [M, groups, outputs], or None: zeros, or minima
    supers  float16 [M, blocks, 1 or 2, outputs], or None: the scales of 256 inputs' scales, and of their minima

M is the number of matrices, such as those of experts. The numbers of a group are, in float32:

    scale * code                              most formats; MXFP4's scale is the exponent of a power of 2
    scale * (code - zero)                     INT4
    scale * code + minimum                    Q4_1, Q5_1
    super * scale * code - super' * minimum   Q4_K, Q5_K; Q6_K has no minimum

Codes of 5 and 6 bits take 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from weft.ops.formats import DENSE_FORMATS, Format
from weft.ops.packing import parts_of

SUPER_BLOCK = 256
ALIGNMENT = 128


class Codes(IntEnum):
    """The meaning of codes. Kernels use the same numbers."""

    NIBBLES = 1
    """0 to 15"""
    SIGNED_NIBBLES = 2
    """0 to 15, less 8"""
    IQ4_NL = 3
    """The places of IQ4_NL's code book."""
    E2M1 = 4
    """MXFP4's numbers."""
    INT8 = 5
    E4M3 = 6

    @property
    def is_half(self) -> bool:
        """Whether a code takes 4 bits."""
        return self <= Codes.E2M1


@dataclass(frozen=True)
class Layout:
    """How a format's numbers lie on the device: the inputs of a group, the dtypes of scales and lows, and how many
    float16 scales 256 inputs have."""

    codes: Codes
    group: int
    scales: torch.dtype
    lows: torch.dtype | None = None
    supers: int = 0

    @property
    def group_bytes(self) -> int:
        """The bytes of a group's codes for an output."""
        return self.group // 2 if self.codes.is_half else self.group


_HALF, _SINGLE = torch.float16, torch.float32
_LAYOUTS = {
    Format.Q4_0: Layout(Codes.SIGNED_NIBBLES, 32, _HALF),
    Format.Q4_1: Layout(Codes.NIBBLES, 32, _HALF, _HALF),
    Format.Q5_0: Layout(Codes.INT8, 32, _HALF),
    Format.Q5_1: Layout(Codes.INT8, 32, _HALF, _HALF),
    Format.Q8_0: Layout(Codes.INT8, 32, _HALF),
    Format.Q4_K: Layout(Codes.NIBBLES, 32, torch.uint8, torch.uint8, 2),
    Format.Q5_K: Layout(Codes.INT8, 32, torch.uint8, torch.uint8, 2),
    Format.Q6_K: Layout(Codes.INT8, 16, torch.int8, None, 1),
    Format.IQ4_NL: Layout(Codes.IQ4_NL, 32, _HALF),
    Format.MXFP4: Layout(Codes.E2M1, 32, torch.uint8),
    Format.INT4_32: Layout(Codes.NIBBLES, 32, _SINGLE, torch.uint8),
    Format.INT4_64: Layout(Codes.NIBBLES, 64, _SINGLE, torch.uint8),
    Format.INT4_128: Layout(Codes.NIBBLES, 128, _SINGLE, torch.uint8),
    Format.INT8_32: Layout(Codes.INT8, 32, _SINGLE),
    Format.INT8_128: Layout(Codes.INT8, 128, _SINGLE),
    Format.FP8: Layout(Codes.E4M3, 128, _SINGLE),
}


class DeviceBlocks(NamedTuple):
    """Quantised matrices [M, outputs, inputs] on the device."""

    codes: Tensor
    scales: Tensor
    lows: Tensor | None
    supers: Tensor | None
    layout: Layout
    num_inputs: int

    @property
    def num_outputs(self) -> int:
        return self.codes.shape[2]


Stored = Tensor | DeviceBlocks
"""Matrices on the device: [M, outputs, inputs], or [outputs, inputs] of one tensor."""


def num_outputs(matrices: Stored) -> int:
    """The number of outputs of each matrix."""
    return matrices.num_outputs if isinstance(matrices, DeviceBlocks) else matrices.shape[-2]


def num_matrices(matrices: Stored) -> int:
    """M."""
    return len(matrices.codes if isinstance(matrices, DeviceBlocks) else matrices)


def num_bytes(format: Format, matrices: int, outputs: int, inputs: int) -> int:
    """The bytes of matrices [M, outputs, inputs] on the device, a multiple of `ALIGNMENT`."""
    return sum(
        _aligned(prod(sizes) * dtype.itemsize) for dtype, sizes in _tensors(format, matrices, outputs, inputs)
    )


def stored_at(
    memory: Tensor, offset: int, format: Format, matrices: int, outputs: int, inputs: int
) -> Stored:
    """The matrices [M, outputs, inputs] of a format that start at a byte of `memory`, as views."""
    views = []
    for dtype, sizes in _tensors(format, matrices, outputs, inputs):
        size = prod(sizes) * dtype.itemsize
        views.append(memory[offset : offset + size].view(dtype).view(sizes))
        offset += _aligned(size)
    if not format.is_quantized:
        return views[0]
    layout = _LAYOUTS[format]
    lows = views[2] if layout.lows is not None else None
    return DeviceBlocks(views[0], views[1], lows, views[-1] if layout.supers else None, layout, inputs)


def stored_parts(packed: Tensor, parts: Sequence[int], matrices: int, inputs: int) -> list[Stored]:
    """The parts of matrices from `device_packing`, one below the other."""
    if not parts:
        return [packed]
    return [
        stored_at(packed, part.offset, part.format, matrices, part.num_outputs, inputs)
        for part in parts_of(parts)
    ]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _tensors(
    format: Format, matrices: int, outputs: int, inputs: int
) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """The dtypes and sizes of a format's tensors: codes, scales, lows, supers; or a dense format's numbers."""
    if not format.is_quantized:
        dtype = next(dtype for dtype, dense in DENSE_FORMATS.items() if dense is format)
        return [(dtype, (matrices, outputs, inputs))]
    layout = _LAYOUTS[format]
    groups = -(-inputs // format.block.inputs) * (format.block.inputs // layout.group)
    sizes = (matrices, groups, outputs)
    tensors: list[tuple[torch.dtype, tuple[int, ...]]]
    tensors = [(torch.uint8, (*sizes, layout.group_bytes)), (layout.scales, sizes)]
    if layout.lows is not None:
        tensors.append((layout.lows, sizes))
    if layout.supers:
        tensors.append(
            (torch.float16, (matrices, groups * layout.group // SUPER_BLOCK, layout.supers, outputs))
        )
    return tensors
