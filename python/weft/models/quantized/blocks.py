"""Makes rows of blocks of codes, factors and zeros (`weft.ops.formats`), on the CPU.

A block of integers begins with its factor, float32. So blocks are copied as words of 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from weft.models.quantized.method import Area
from weft.ops.formats import Format
from weft.ops.huge_pages import temporary

INT4_FORMATS = (Format.INT4_128, Format.INT4_64, Format.INT4_32)
INT8_FORMATS = (Format.INT8_128, Format.INT8_32)
OUTPUTS_AT_ONCE = 256
"""The rows that are converted at once, so that few codes are in memory twice."""
LOW = 0x0F0F0F0F
"""The low half of each byte of a word."""


def format_of(formats: Sequence[Format], num_inputs: int, group: int) -> Format | None:
    """The first of `formats` whose blocks fit rows of `num_inputs` numbers with a factor for each `group` of them. None
    if there is none."""
    return next(
        (each for each in formats if num_inputs % each.block.inputs == 0 == group % each.block.inputs), None
    )


def num_blocks(format: Format, num_inputs: int) -> int:
    """The number of blocks of a row."""
    return -(-num_inputs // format.block.inputs)


def spread(factors: Tensor, area: Area, num_outputs: int, num_inputs: int, format: Format) -> Tensor:
    """The number of each block, [out, blocks of a row], for one of each area, [areas of rows, areas of columns]. The
    columns of an area are whole blocks."""
    if area.rows > 1:
        factors = factors.repeat_interleave(area.rows, 0)[:num_outputs]
    if area.columns > format.block.inputs:
        factors = factors.repeat_interleave(area.columns // format.block.inputs, 1)
    count = num_blocks(format, num_inputs)
    return factors[:, :count].expand(num_outputs, count)


def bytes_rows(format: Format, codes: Tensor, factors: Tensor) -> Tensor:
    """Rows of blocks of FP8 or of integers of 8 bits, uint8 [out, row bytes]. `codes` are bytes [out, in], `factors`
    [out, blocks]."""
    (num_outputs, num_inputs), size = codes.shape, format.block.inputs
    rows = temporary((num_outputs, num_blocks(format, num_inputs), format.block.bytes), torch.uint8)
    rows.view(torch.float32)[..., 0] = factors
    whole = num_inputs // size
    codes = codes.view(torch.uint8)
    rows[:, :whole, 4:] = codes[:, : whole * size].unflatten(1, (whole, size))
    if num_inputs % size:  # the rest of the last block is 0
        rows[:, whole, 4 : 4 + num_inputs % size] = codes[:, whole * size :]
    return rows.flatten(1)


class Int4Rows:
    """Rows of blocks of integers of 4 bits, `bytes` uint8 [out, row bytes], of which `factors` and `zeros`, both [out,
    blocks], are written. `words` int32 [out, blocks, inputs of a block / 32, 4] is the place of the codes."""

    def __init__(self, format: Format, factors: Tensor, zeros: Tensor) -> None:
        num_outputs, count = factors.shape
        rows = temporary((num_outputs, count, format.block.bytes), torch.uint8)
        self.bytes = rows.flatten(1)
        words = rows.view(torch.int32)
        rows.view(torch.float32)[..., 0] = factors
        words[..., 1] = zeros  # a byte and three zeros
        self.words = words[..., 2:].unflatten(-1, (-1, 4))


def write_int4(words: Tensor, codes: Sequence[Tensor]) -> None:
    """Write codes to `words` [..., 4]. `codes` are four words [...], each of eight codes in the order of the inputs.

    A byte of a block has the codes of inputs j and j + 16."""
    first, second, third, fourth = codes
    # Memory of its own goes back to the system. Freed by the allocator, it would stay in holes between other objects.
    low, high, spare = temporary((3, *first.shape), torch.int32)
    for place, (of_low, of_high, shift) in enumerate(
        ((first, third, 0), (first, third, 16), (second, fourth, 0), (second, fourth, 16))
    ):
        _to_bytes(of_low, shift, low, spare)
        _to_bytes(of_high, shift, high, spare)
        words[..., place] = low.bitwise_or_(high.bitwise_left_shift_(4))


def _to_bytes(codes: Tensor, shift: int, out: Tensor, spare: Tensor) -> None:
    """Write four codes of each word, from bit `shift` on, to the low halves of the bytes of `out`. Overwrites
    `spare`."""
    torch.bitwise_right_shift(codes, shift, out=out).bitwise_and_(0xFFFF)
    for distance, mask in ((8, 0x00FF00FF), (4, LOW)):
        torch.bitwise_left_shift(out, distance, out=spare)
        out.bitwise_or_(spare).bitwise_and_(mask)


def unpacked(words: Tensor, bits: int) -> Tensor:
    """The codes in words [..., n], the lowest bits first: int32 [..., n * 32 / bits]."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)).flatten(-2)


def unpacked_inputs(words: Tensor, bits: int) -> Tensor:
    """The codes in words [n, ...], as in `unpacked`: int32 [n * 32 / bits, ...]."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32).view(-1, *[1] * (words.dim() - 1))
    return ((words.unsqueeze(1) >> shifts) & ((1 << bits) - 1)).flatten(0, 1)
