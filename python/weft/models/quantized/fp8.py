"""FP8 (E4M3) with a factor for each matrix, each output, or each area of outputs and inputs.

A matrix `x.weight` is F8_E4M3 [out, in]. Its factors are `x.weight_scale_inv` in the files of DeepSeek and Qwen3, and
`x.weight_scale` in others: [areas of outputs, areas of inputs], with an area for all inputs also [out], with one area
also []. A number is code * factor. All experts' matrices in one tensor [E, out, in] have factors [E, ...].
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from weft.models.fields import LARGEST, Fields
from weft.models.quantized.blocks import bytes_rows, spread
from weft.models.quantized.method import (
    CHANNEL,
    SCALE_DTYPES,
    TENSOR,
    Area,
    Blocks,
    Method,
    Parts,
    take_scales,
)
from weft.models.quantized.options import ADVICE, must_be
from weft.ops.formats import Format

E4M3 = "F8_E4M3"
SCALE, INVERSE = "_scale", "_scale_inv"
"""Ends of the names of factors, after the name of the matrix. The second one is that of files with areas; it means the
factor, too."""
DTYPES = (*SCALE_DTYPES, "F8_E8M0")
"""Dtypes of factors."""


@dataclass(frozen=True)
class Fp8(Method):
    """`areas` are those that factors may have; the first that the shape of a matrix's factors fits is used. `ends` are
    the ends of their names, the likeliest first."""

    title: ClassVar[str] = "FP8"
    helpers: ClassVar[tuple[str, ...]] = (SCALE, INVERSE)

    areas: tuple[Area, ...] = (TENSOR, CHANNEL)
    ends: tuple[str, ...] = (SCALE, INVERSE)

    @classmethod
    def parse(cls, settings: Fields) -> Fp8:
        """Parse the options in config.json."""
        must_be(settings, "fmt", "e4m3", ("e4m3", "float8_e4m3fn"))
        must_be(settings, "expert_dtype", "fp8", ("fp8",))
        sizes = settings.data.get("weight_block_size")
        if sizes is None:
            return cls()
        return cls((parse_area(settings, "weight_block_size", sizes),), (INVERSE, SCALE))

    def holds(self, parts: Parts, name: str) -> bool:
        return parts.dtype_of(name) == E4M3

    def take(self, parts: Parts, name: str, num_outputs: int, num_inputs: int) -> Blocks:
        codes = parts.take_part(name, (E4M3,), num_outputs, num_inputs)
        sizes = num_outputs, num_inputs
        found = parts.shape_of(self._scales_of(parts, name))
        area = next((area for area in self.areas if found in area.shapes(*sizes)), self.areas[0])
        scales = take_scales(parts, self._scales_of(parts, name), sizes, area, DTYPES)
        return Blocks(sizes, Format.FP8, partial(_rows, codes, scales, area), _dtype_of(scales))

    def take_each(
        self, parts: Parts, name: str, count: int, num_outputs: int, num_inputs: int
    ) -> list[Blocks]:
        codes = parts.take_part(name, (E4M3,), count, num_outputs, num_inputs)
        sizes, area = (num_outputs, num_inputs), self.areas[0]
        scales = parts.take_part(self._scales_of(parts, name), DTYPES, count, *area.counts(*sizes))
        return [
            Blocks(sizes, Format.FP8, partial(_rows, codes[expert], scales[expert], area), _dtype_of(scales))
            for expert in range(count)
        ]

    def _scales_of(self, parts: Parts, name: str) -> str:
        """The name of the factors of matrix `name`."""
        return next((name + end for end in self.ends if name + end in parts), name + self.ends[0])


def parse_area(settings: Fields, key: str, sizes: object) -> Area:
    """Parse the outputs and the inputs of an area. The inputs are whole blocks. Raises `ModelError`."""
    if (
        not isinstance(sizes, list)
        or len(sizes) != 2
        or not all(type(size) is int and 0 < size <= LARGEST for size in sizes)
        or sizes[1] % Format.FP8.block.inputs
    ):
        raise settings.error(
            key, f"is {repr(sizes)[:60]}; weft reads [outputs, inputs], the inputs multiples of "
            f"{Format.FP8.block.inputs}; {ADVICE}",
        )  # fmt: skip
    return Area(*sizes)


def _rows(codes: Tensor, scales: Tensor, area: Area) -> Tensor:
    num_outputs, num_inputs = codes.shape
    factors = spread(scales.float(), area, num_outputs, num_inputs, Format.FP8)
    return bytes_rows(Format.FP8, codes, factors)


def _dtype_of(scales: Tensor) -> torch.dtype:
    """The dtype to dequantise to: that of the factors. Factors of 8 bits are powers of 2."""
    return scales.dtype if scales.dtype.itemsize > 1 else torch.bfloat16
