"""Writes quantised matrices to memory on CUDA, in the layout of `weft.ops.device_blocks`, while a model loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, groupby
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from weft.ops.device_blocks import Stored, num_bytes, stored_parts
from weft.ops.formats import Format
from weft.ops.library import require
from weft.ops.packing import Orders, Packed, PackedPart, format_of
from weft.ops.quantized import Matrix, Quantized

PIECE = 1 << 24
"""The numbers that are converted at once."""


class DeviceStore:
    """Memory on the device for `count` matrices, one part below the other, each with parts like `first`. At least one
    part is quantised. Neighbours of one format and one order of inputs become one part."""

    def __init__(self, count: int, first: Sequence[Matrix]) -> None:
        inputs = first[0].shape[-1]
        self._shapes = [part.shape for part in first]
        self._formats = [format_of(part) for part in first]
        require(all(part.shape[-1] == inputs for part in first), f"parts must have {inputs} inputs each")
        # Each part's place among the joined ones, and its first output.
        self._places: list[tuple[int, int]] = []
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
            f"matrix {index} must be {_described(self._formats, self._shapes)} as the first, not "
            f"{_described(formats, shapes)}",
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


def _described(formats: Sequence[Format], shapes: Sequence[torch.Size]) -> str:
    return ", ".join(f"{format.name} {list(shape)}" for format, shape in zip(formats, shapes, strict=True))


def _rows(matrix: Matrix) -> int:
    return prod(matrix.shape[:-1])


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


def _float16(blocks: Tensor, first: int, count: int = 1) -> Tensor:
    """The numbers of float16 from byte `first` of each block on."""
    return blocks[..., first : first + 2 * count].contiguous().view(torch.float16)


def _float32(blocks: Tensor) -> Tensor:
    """The number of float32 at the start of each block."""
    return blocks[..., :4].contiguous().view(torch.float32)


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
    return _Numbers(_halves(blocks[..., 2:], 16), _float16(blocks, 0))


def _q4_1(blocks: Tensor) -> _Numbers:
    return _Numbers(
        _halves(blocks[..., 4:], 16),
        _float16(blocks, 0),
        _float16(blocks, 2),
    )


def _q5_0(blocks: Tensor) -> _Numbers:
    codes = _halves(blocks[..., 6:], 16) | _row_of_bits(blocks[..., 2:6]) << 4
    return _Numbers(codes - 16, _float16(blocks, 0))


def _q5_1(blocks: Tensor) -> _Numbers:
    codes = _halves(blocks[..., 8:], 16) | _row_of_bits(blocks[..., 4:8]) << 4
    return _Numbers(codes, _float16(blocks, 0), _float16(blocks, 2))


def _q8_0(blocks: Tensor) -> _Numbers:
    return _Numbers(blocks[..., 2:], _float16(blocks, 0))


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """The 8 scales and 8 minima of 6 bits in the 12 bytes of Q4_K and Q5_K."""
    first, second, third = packed.unflatten(-1, (3, 4)).unbind(-2)
    scales = torch.cat((first & 63, third & 15 | first >> 6 << 4), -1)
    return scales, torch.cat((second & 63, third >> 4 | second >> 6 << 4), -1)


def _q4_k(blocks: Tensor) -> _Numbers:
    return _Numbers(_halves(blocks[..., 16:], 32), *_k_scales(blocks[..., 4:16]), _float16(blocks, 0, 2))


def _q5_k(blocks: Tensor) -> _Numbers:
    codes = _halves(blocks[..., 48:], 32) | _bits(blocks[..., 16:48], 1).flatten(-2) << 4
    return _Numbers(codes, *_k_scales(blocks[..., 4:16]), _float16(blocks, 0, 2))


def _q6_k(blocks: Tensor) -> _Numbers:
    high = _bits(blocks[..., 128:192].unflatten(-1, (2, 32)), 2).flatten(-3)
    codes = (_halves(blocks[..., :128], 64) | high << 4) - 32
    return _Numbers(codes, blocks[..., 192:208].view(torch.int8), None, _float16(blocks, 208))


def _mxfp4(blocks: Tensor) -> _Numbers:
    return _Numbers(_halves(blocks[..., 1:], 16), blocks[..., :1])


def _int4(blocks: Tensor) -> _Numbers:
    return _Numbers(_halves(blocks[..., 8:], 16), _float32(blocks), blocks[..., 4:5])


def _bytes(blocks: Tensor) -> _Numbers:
    """INT8 and FP8."""
    return _Numbers(blocks[..., 4:], _float32(blocks))


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
