"""GPTQ: integers of 4 or 8 bits with a factor and a zero for each group of inputs.

Tensors of a module with I inputs, O outputs and groups of G inputs: `qweight` int32 [I / 8, O], `qzeros` int32 [I / G,
O / 8], `scales` [I / G, O], `g_idx` int32 [I]; with 8 bits, a word has 4 codes instead of 8. The codes in a word are in
order, from the lowest bits on. A number is scale * (code - zero). The zero is one more than the stored one; in version
2 it is the stored one.

`g_idx` has the group of each input. If groups are not of adjacent inputs ("act-order"), blocks have the inputs group by
group, and products read their rows in that order. If groups have different sizes no block fits them, because its inputs
would have different factors. Then the matrix is kept in floating point.
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
    INT8_FORMATS,
    OUTPUTS_AT_ONCE,
    Int4Rows,
    format_of,
    num_blocks,
    spread,
    unpacked,
    unpacked_inputs,
    write_int4,
)
from weft.models.quantized.method import SCALE_DTYPES, WEIGHT, Area, Blocks, Floats, Method, Parts, refuse
from weft.models.quantized.options import ADVICE, group_size, must_be
from weft.models.quantized.order import are_in_order, are_ordered, order_by_group, ordered_numbers, reordered
from weft.ops.formats import Format
from weft.ops.huge_pages import temporary


@dataclass(frozen=True)
class Gptq(Method):
    """`group` is the number of inputs with one factor; 0: all. `added` is added to stored zeros."""

    title: ClassVar[str] = "GPTQ"
    packed: ClassVar[str] = ".qweight"
    helpers: ClassVar[tuple[str, ...]] = (".qzeros", ".scales", ".g_idx")
    has_idle_biases: ClassVar[bool] = True

    bits: int
    group: int
    added: int

    @property
    def codes_per_element(self) -> int:
        return 32 // self.bits

    @classmethod
    def parse(cls, settings: Fields) -> Gptq:
        """Parse the options in config.json."""
        bits = must_be(settings, "bits", None, (4, 8))
        version = must_be(settings, "checkpoint_format", "gptq", ("gptq", "gptq_v2"), also=("format",))
        must_be(settings, "is_marlin_format", False, (False,))
        must_be(settings, "pack_dtype", "int32", ("int32",))
        if bits == 8:
            must_be(settings, "sym", True, (True,))
        dynamic = settings.data.get("dynamic") or {}
        if not isinstance(dynamic, dict) or any(not name.startswith("-:") for name in dynamic):
            # "-:" names modules that are not quantised.
            raise settings.error(
                "dynamic", f"gives modules options of their own, which weft does not read; {ADVICE}"
            )
        return cls(bits, group_size(settings, None), 1 if version == "gptq" else 0)

    def take(self, parts: Parts, name: str, num_outputs: int, num_inputs: int) -> Blocks | Floats:
        module, codes_name = name.removesuffix(WEIGHT), self.codes_name(name)
        each, group = 32 // self.bits, self.group or num_inputs
        format = format_of(INT4_FORMATS if self.bits == 4 else INT8_FORMATS, num_inputs, group)
        if format is None or num_outputs % each:
            raise refuse(
                parts, codes_name, f"is of a matrix {[num_outputs, num_inputs]} in GPTQ with {self.bits} bits; the "
                f"inputs must be a multiple of 32, the outputs of {each}",
            )  # fmt: skip
        num_groups = -(-num_inputs // group)
        codes = parts.take_part(codes_name, ("I32",), num_inputs // each, num_outputs)
        zeros = parts.take_part(f"{module}.qzeros", ("I32",), num_groups, num_outputs // each)
        scales = parts.take_part(f"{module}.scales", SCALE_DTYPES, num_groups, num_outputs)
        shape, name_of_groups, order = (num_outputs, num_inputs), f"{module}.g_idx", None
        if name_of_groups in parts:
            groups = parts.take_small(name_of_groups, ("I32",), num_inputs)
            if not are_in_order(parts, name_of_groups, groups, num_groups, group):
                order = order_by_group(groups, group)
                if order is None:
                    return Floats(shape, scales.dtype, partial(self._numbers, codes, zeros, scales, groups))
        if self.bits == 4:
            read = partial(self._int4, format, group, codes, zeros, scales, order)
            return Blocks(shape, format, read, scales.dtype, order)
        wrong = refuse(
            parts, f"{module}.qzeros", "has other zeros than 128, as 'sym' in config.json promises"
        )
        read = partial(self._int8, format, group, codes, zeros, scales, order, wrong)
        return Blocks(shape, format, read, scales.dtype, order)

    def is_ordered(self, parts: Parts, name: str) -> bool:
        return are_ordered(parts, name.removesuffix(WEIGHT) + ".g_idx", self.group)

    def _zeros(self, zeros: Tensor) -> Tensor:
        """The zeros [groups, out]."""
        return unpacked(zeros, self.bits) + self.added

    def _int4(
        self, format: Format, group: int, codes: Tensor, zeros: Tensor, scales: Tensor, order: Tensor | None
    ) -> Tensor:
        codes = codes if order is None else reordered(codes, self.bits, order)
        num_outputs, num_inputs, area = codes.shape[1], 8 * codes.shape[0], Area(1, group)
        rows = Int4Rows(
            format,
            spread(scales.t(), area, num_outputs, num_inputs, format),
            spread(self._zeros(zeros).t(), area, num_outputs, num_inputs, format),
        )
        words = codes.view(-1, format.block.inputs // 32, 4, num_outputs)
        for begin in range(0, num_outputs, OUTPUTS_AT_ONCE):
            place = slice(begin, begin + OUTPUTS_AT_ONCE)
            each = words[..., place].unbind(2)
            write_int4(rows.words[place].permute(1, 2, 0, 3), each)
        return rows.bytes

    def _int8(
        self,
        format: Format,
        group: int,
        codes: Tensor,
        zeros: Tensor,
        scales: Tensor,
        order: Tensor | None,
        wrong: ModelError,
    ) -> Tensor:
        if not (self._zeros(zeros) == 128).all():
            raise wrong
        codes = codes if order is None else reordered(codes, self.bits, order)
        num_outputs, num_inputs = codes.shape[1], 4 * codes.shape[0]
        rows = temporary((num_outputs, num_blocks(format, num_inputs), format.block.bytes), torch.uint8)
        rows.view(torch.float32)[..., 0] = spread(scales.t(), Area(1, group), num_outputs, num_inputs, format)
        words = codes.view(-1, format.block.inputs // 4, num_outputs)
        rows.view(torch.int32)[..., 1:] = words.permute(2, 0, 1)
        rows[..., 4:] ^= 0x80  # code - 128 as a signed byte
        return rows.flatten(1)

    def _numbers(
        self, codes: Tensor, zeros: Tensor, scales: Tensor, groups: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """The numbers of a matrix whose groups no blocks fit."""
        return ordered_numbers(
            lambda place: unpacked_inputs(codes[:, place], self.bits),
            self._zeros(zeros),
            scales,
            groups,
            dtype,
        )
