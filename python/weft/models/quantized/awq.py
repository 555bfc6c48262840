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
    """`group` is the number of inputs with one factor; 0: all."""

    title: ClassVar[str] = "AWQ"
    packed: ClassVar[str] = ".qweight"
    helpers: ClassVar[tuple[str, ...]] = (".qzeros", ".scales")

    group: int

    @property
    def codes_per_element(self) -> int:
        return 8

    @classmethod
    def parse(cls, settings: Fields) -> Awq:
        """Parse the options in config.json."""
        must_be(settings, "bits", 4, (4,), also=("w_bit",))
        must_be(settings, "zero_point", True, (True,))
        must_be(settings, "version", "gemm", ("gemm", "GEMM"), also=("format",))
        return cls(group_size(settings, 128, also=("q_group_size",)))

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
        zeros = parts.take_part(f"{module}.qzeros", ("I32",), num_groups, num_outputs // 8)
        scales = parts.take_part(f"{module}.scales", SCALE_DTYPES, num_groups, num_outputs)
        return Blocks((num_outputs, num_inputs), format, partial(_rows, format, group, codes, zeros, scales))


def _rows(format: Format, group: int, codes: Tensor, zeros: Tensor, scales: Tensor) -> Tensor:
    (num_inputs, num_words), area = codes.shape, Area(1, group)
    num_outputs = 8 * num_words
    places = torch.tensor([ORDER.index(output) for output in range(8)])
    ordered = unpacked(zeros, 4).unflatten(1, (-1, 8))[..., places].flatten(1)
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
        pairs, other = both[..., : low.shape[-1]]
        for first in range(2):  # a word has the bytes of every other place
            if first == 0:
                torch.bitwise_and(low, LOW, out=pairs)
                torch.bitwise_and(high, LOW, out=other).bitwise_left_shift_(4)
            else:
                torch.bitwise_right_shift(low, 4, out=pairs).bitwise_and_(LOW)
                torch.bitwise_and(high, ~LOW, out=other)
            pairs |= other
            each = pairs.unsqueeze(-1).view(torch.uint8).permute(3, 4, 0, 1, 2)
            for byte in range(4):
                target[begin : begin + step, ORDER[2 * byte + first]] = each[:, byte]
    return rows.bytes
