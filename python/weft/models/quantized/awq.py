"""AWQ: integers of 4 bits with a factor and a zero for each group of inputs, in the layout "gemm".

Tensors of a module with I inputs, O outputs and groups of G inputs: `qweight` int32 [I, O / 8], `qzeros` int32 [I / G,
O / 8], `scales` [I / G, O]. A word has eight outputs, in the order of `ORDER` from the lowest bits on. A number is
scale * (code - zero).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from weft.errors import ModelError
from weft.models.fields import Fields
from weft.models.quantized.blocks import (
    INT4_FORMATS,
    LOW,
    OUTPUTS_AT_ONCE,
    Int4Rows,
    format_of,
    spread,
    unpacked,
)
from weft.models.quantized.method import SCALE_DTYPES, WEIGHT, Area, Blocks, Method, Parts, refuse
from weft.models.quantized.options import group_size, must_be
from weft.ops.formats import Format
from weft.ops.huge_pages import temporary

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The outputs in a word, from the lowest bits on."""


@dataclass(frozen=True)
class Awq(Method):
    """`group` is the number of inputs with one factor; 0: all. Without `has_zeros` all zeros are 8, and need not be
    stored."""

    title: ClassVar[str] = "AWQ"
    packed: ClassVar[str] = ".qweight"
    helpers: ClassVar[tuple[str, ...]] = (".qzeros", ".scales")

    group: int
    has_zeros: bool = True

    @property
    def codes_per_element(self) -> int:
        return 8

    @classmethod
    def parse(cls, settings: Fields) -> Awq:
        """Parse the options in config.json."""
        must_be(settings, "bits", 4, (4,), also=("w_bit",))
        has_zeros = must_be(settings, "zero_point", True, (True, False))
        must_be(settings, "version", "gemm", ("gemm", "GEMM"), also=("format",))
        return cls(group_size(settings, 128, also=("q_group_size",)), has_zeros)

    def take(self, parts: Parts, name: str, num_outputs: int, num_inputs: int) -> Blocks:
        module, codes_name = name.removesuffix(WEIGHT), self.codes_name(name)
        group = self.group or num_inputs
        format = format_of(INT4_FORMATS, num_inputs, group)
        if format is None or num_inputs % group or num_outputs % 8:
            raise refuse(
                parts, codes_name, f"is of a matrix {[num_outputs, num_inputs]} in AWQ with groups of {group} inputs; "
                f"the inputs must be a multiple of {max(group, 32)}, the outputs of 8",
            )  # fmt: skip
        num_groups = num_inputs // group
        codes = parts.take_part(codes_name, ("I32",), num_inputs, num_outputs // 8)
        zeros, wrong, zeros_name = None, None, f"{module}.qzeros"
        if self.has_zeros or zeros_name in parts:
            zeros = parts.take_part(zeros_name, ("I32",), num_groups, num_outputs // 8)
        if not self.has_zeros:
            wrong = refuse(
                parts, zeros_name, "has other zeros than 8, as 'zero_point' in config.json promises"
            )
        scales = parts.take_part(f"{module}.scales", SCALE_DTYPES, num_groups, num_outputs)
        return Blocks(
            (num_outputs, num_inputs),
            format,
            partial(_rows, format, group, codes, zeros, scales, wrong),
            scales.dtype,
        )


def _rows(
    format: Format, group: int, codes: Tensor, zeros: Tensor | None, scales: Tensor, wrong: ModelError | None
) -> Tensor:
    """The rows of blocks. Raises `wrong`, if it is given, for a zero that is not 8."""
    (num_inputs, num_words), area = codes.shape, Area(1, group)
    num_outputs = 8 * num_words
    places = torch.tensor([ORDER.index(output) for output in range(8)])
    if zeros is None:
        ordered = torch.full(scales.shape, 8, dtype=torch.int32)
    else:
        ordered = unpacked(zeros, 4).unflatten(1, (-1, 8))[..., places].flatten(1)
    if wrong is not None and not (ordered == 8).all():
        raise wrong
    rows = Int4Rows(
        format,
        spread(scales.t(), area, num_outputs, num_inputs, format),
        spread(ordered.t(), area, num_outputs, num_inputs, format),
    )
    # [output / 8, output % 8, block, in / 32, byte]
    target = rows.words.view(torch.uint8).unflatten(0, (-1, 8))
    halves = codes.view(-1, format.block.inputs // 32, 2, 16, num_words)
    step = OUTPUTS_AT_ONCE // 8
    # Memory of its own goes back to the system. Freed by the allocator, it would stay in holes between other objects.
    both = temporary((2, *halves.shape[:2], 16, min(step, num_words)), torch.int32)
    for begin in range(0, num_words, step):
        low, high = halves[..., begin : begin + step].unbind(2)
        words, other = both[..., : low.shape[-1]]
        # Half byte n of a word is of output ORDER[n]. Even half bytes are the low ones of their bytes.
        for is_odd in range(2):
            if is_odd:
                torch.bitwise_right_shift(low, 4, out=words).bitwise_and_(LOW)
                torch.bitwise_and(high, ~LOW, out=other)
            else:
                torch.bitwise_and(low, LOW, out=words)
                torch.bitwise_and(high, LOW, out=other).bitwise_left_shift_(4)
            words |= other
            pairs = words.unsqueeze(-1).view(torch.uint8).permute(3, 4, 0, 1, 2)
            for byte in range(4):
                target[begin : begin + step, ORDER[2 * byte + is_odd]] = pairs[:, byte]
    return rows.bytes
