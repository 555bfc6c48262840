"""Quantised matrices on CUDA: the numbers of blocks, apart and in the order in which the kernels read them.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain, groupby
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from weft.ops.formats import DENSE_FORMATS, Format
from weft.ops.library import require
from weft.ops.packing import Orders, Packed, PackedPart, format_of, parts_of
from weft.ops.quantized import Matrix, Quantized

SUPER_BLOCK = 256
ALIGNMENT = 128
PIECE = 1 << 24
"""The numbers that are converted at once."""


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
    """The parts of matrices from `pack_device`, one below the other."""
    if not parts:
        return [packed]
    return [
        stored_at(packed, part.offset, part.format, matrices, part.num_outputs, inputs)
        for part in parts_of(parts)
    ]


class DeviceStore:
    """Memory on the device for `count` matrices, one part below the other, each with parts like `first`. At least one
    part is quantised. Neighbours of one format and one order of inputs become one part."""

    def __init__(self, count: int, first: Sequence[Matrix]) -> None:
        inputs = first[0].shape[-1]
        self._shapes = [part.shape for part in first]
        self._formats = [format_of(part) for part in first]
        require(all(part.shape[-1] == inputs for part in first), f"parts must have {inputs} inputs each")
        self._places: list[
            tuple[int, int]
        ] = []  # each part's place among the joined ones, and its first output
        orders = Orders(first)
        kinds = list(zip(self._formats, orders.places, strict=True))
        outputs: list[int] = []
        for number, part in enumerate(first):
            if number == 0 or kinds[number - 1] != kinds[number]:
                outputs.append(0)
            self._places.append((len(outputs) - 1, outputs[-1]))
            outputs[-1] += _rows(part)
        offset, packed = 0, list[PackedPart]()
        for (format, order), rows in zip([kind for kind, _ in groupby(kinds)], outputs, strict=True):
            packed.append(PackedPart(format, rows, offset, order=order))
            offset += num_bytes(format, count, rows, inputs)
        memory = torch.empty(offset, dtype=torch.uint8, device=first[0].device)
        numbers = tuple(chain.from_iterable(packed))
        self.packed = Packed(memory, numbers, orders.on(memory.device))
        self._stored = stored_parts(memory, numbers, count, inputs)

    def put(self, index: int, parts: Sequence[Matrix]) -> None:
        """Copy the parts of a matrix."""
        formats, shapes = [format_of(part) for part in parts], [part.shape for part in parts]
        require(
            formats == self._formats and shapes == self._shapes,
            f"matrix {index} must be {_names(self._formats, self._shapes)} as the first, not "
            f"{_names(formats, shapes)}",
        )
        if self.packed.memory.is_meta:
            return
        for part, (place, first) in zip(parts, self._places, strict=True):
            _write(part, self._stored[place], index, first)


def pack_device(parts: Sequence[Matrix]) -> Packed:
    """Copy a matrix in parts, one below the other, to the device's layout. At least one part is quantised."""
    store = DeviceStore(1, parts)
    store.put(0, parts)
    return store.packed


def _names(formats: Sequence[Format], shapes: Sequence[torch.Size]) -> str:
    return ", ".join(f"{format.name} {list(shape)}" for format, shape in zip(formats, shapes, strict=True))


def _rows(matrix: Matrix) -> int:
    return prod(matrix.shape[:-1])


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


def _write(matrix: Matrix, stored: Stored, index: int, first: int) -> None:
    """Write a matrix to the outputs from `first` on of matrix `index`."""
    if isinstance(stored, Tensor):
        assert isinstance(matrix, Tensor)
        stored[index, first : first + _rows(matrix)] = matrix.reshape(-1, matrix.shape[-1])
        return
    assert isinstance(matrix, Quantized)
    layout, block = stored.layout, matrix.format.block
    rows = matrix.data.reshape(-1, matrix.data.shape[-1])
    count = max(1, PIECE // max(1, matrix.num_inputs))
    for piece in rows.split(count):
        blocks = piece.contiguous().view(len(piece), -1, block.bytes)
        numbers = _READERS[matrix.format](blocks)
        last = first + len(piece)
        codes = numbers.codes.reshape(len(piece), -1, layout.group)
        if layout.codes.is_half:
            half = layout.group // 2
            codes = codes[..., :half] | codes[..., half:] << 4
        stored.codes[index, :, first:last] = codes.transpose(0, 1)
        stored.scales[index, :, first:last] = numbers.scales.reshape(len(piece), -1).t()
        if stored.lows is not None and numbers.lows is not None:
            stored.lows[index, :, first:last] = numbers.lows.reshape(len(piece), -1).t()
        if stored.supers is not None and numbers.supers is not None:
            stored.supers[index, :, :, first:last] = numbers.supers.permute(1, 2, 0)
        first = last


class _Numbers(NamedTuple):
    """The numbers of blocks: codes uint8 [N, blocks, inputs], scales and lows [N, blocks, groups], supers [N, blocks,
    1 or 2]."""

    codes: Tensor
    scales: Tensor
    lows: Tensor | None = None
    supers: Tensor | None = None


def _of(blocks: Tensor, first: int, count: int, dtype: torch.dtype) -> Tensor:
    """The numbers of `dtype` from byte `first` of each block on."""
    return blocks[..., first : first + count * dtype.itemsize].contiguous().view(dtype)


def _halves(codes: Tensor, run: int) -> Tensor:
    """Codes of 4 bits [..., n], a byte each [..., 2 n]: of each run of bytes the low halves, then the high ones."""
    runs = codes.unflatten(-1, (-1, run))
    return torch.stack((runs & 15, runs >> 4), -2).flatten(-3)


def _bits(planes: Tensor, width: int) -> Tensor:
    """The bits of bytes [..., n], `width` at a time from the lowest on: [..., 8 / width, n]."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8, device=planes.device)
    return planes[..., None, :] >> shifts[:, None] & (1 << width) - 1


def _row_of_bits(planes: Tensor) -> Tensor:
    """The bits of bytes [..., n], those of the first byte first: [..., 8 n]."""
    return _bits(planes, 1).transpose(-1, -2).flatten(-2)


def _q4_0(blocks: Tensor) -> _Numbers:
    return _Numbers(_halves(blocks[..., 2:], 16), _of(blocks, 0, 1, _HALF))


def _q4_1(blocks: Tensor) -> _Numbers:
    return _Numbers(_halves(blocks[..., 4:], 16), _of(blocks, 0, 1, _HALF), _of(blocks, 2, 1, _HALF))


def _q5_0(blocks: Tensor) -> _Numbers:
    codes = _halves(blocks[..., 6:], 16) | _row_of_bits(blocks[..., 2:6]) << 4
    return _Numbers(codes - 16, _of(blocks, 0, 1, _HALF))


def _q5_1(blocks: Tensor) -> _Numbers:
    codes = _halves(blocks[..., 8:], 16) | _row_of_bits(blocks[..., 4:8]) << 4
    return _Numbers(codes, _of(blocks, 0, 1, _HALF), _of(blocks, 2, 1, _HALF))


def _q8_0(blocks: Tensor) -> _Numbers:
    return _Numbers(blocks[..., 2:], _of(blocks, 0, 1, _HALF))


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The 8 scales and 8 minima of 6 bits in the 12 bytes of Q4_K and Q5_K."""
    first, second, third = packed.unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, third & 15 | first >> 6 << 4), -1)
    return scales, torch.cat((second & 63, third >> 4 | second >> 6 << 4), -1)


def _q4_k(blocks: Tensor) -> _Numbers:
    return _Numbers(_halves(blocks[..., 16:], 32), *_k_scales(blocks[..., 4:16]), _of(blocks, 0, 2, _HALF))


def _q5_k(blocks: Tensor) -> _Numbers:
    codes = _halves(blocks[..., 48:], 32) | _bits(blocks[..., 16:48], 1).flatten(-2) << 4
    return _Numbers(codes, *_k_scales(blocks[..., 4:16]), _of(blocks, 0, 2, _HALF))


def _q6_k(blocks: Tensor) -> _Numbers:
    high = _bits(blocks[..., 128:192].unflatten(-1, (2, 32)), 2).flatten(-3)
    codes = (_halves(blocks[..., :128], 64) | high << 4) - 32
    return _Numbers(codes, blocks[..., 192:208].view(torch.int8), None, _of(blocks, 208, 1, _HALF))


def _mxfp4(blocks: Tensor) -> _Numbers:
    return _Numbers(_halves(blocks[..., 1:], 16), blocks[..., :1])


def _int4(blocks: Tensor) -> _Numbers:
    return _Numbers(_halves(blocks[..., 8:], 16), _of(blocks, 0, 1, _SINGLE), blocks[..., 4:5])


def _bytes(blocks: Tensor) -> _Numbers:
    """INT8 and FP8."""
    return _Numbers(blocks[..., 4:], _of(blocks, 0, 1, _SINGLE))


_READERS: dict[Format, Callable[[Tensor], _Numbers]] = {
    Format.Q4_0: _q4_0,
    Format.Q4_1: _q4_1,
    Format.Q5_0: _q5_0,
    Format.Q5_1: _q5_1,
    Format.Q8_0: _q8_0,
    Format.Q4_K: _q4_k,
    Format.Q5_K: _q5_k,
    Format.Q6_K: _q6_k,
    Format.IQ4_NL: _q4_0,
    Format.MXFP4: _mxfp4,
    Format.INT4_32: _int4,
    Format.INT4_64: _int4,
    Format.INT4_128: _int4,
    Format.INT8_32: _bytes,
    Format.INT8_128: _bytes,
    Format.FP8: _bytes,
}
