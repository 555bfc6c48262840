"""MXFP4 of GPT-OSS: numbers of 4 bits in blocks of 32 inputs, each with a power of 2 as its factor.

The matrices of all experts are two tensors: `x_blocks` uint8 [E, out, in / 32, 16] and `x_scales` uint8 [E, out, in /
32]. A byte of a block has inputs 2j and 2j + 1, the first one in its low half. The 4 bits are a sign, two bits of an
exponent and one of a fraction; a factor is a byte s, for 2^(s - 127), or 255 for a block of NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from weft.models.fields import Fields
from weft.models.quantized.method import Blocks, Method, Parts, refuse
from weft.ops.formats import Format
from weft.ops.huge_pages import temporary

BLOCKS, SCALES = "_blocks", "_scales"
"""The ends of the names of a tensor's two parts."""
IN_16_BITS = {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}
"""The modules of a checkpoint in MXFP4 that are not in it."""


@dataclass(frozen=True)
class Mxfp4(Method):
    title: ClassVar[str] = "MXFP4"
    packed: ClassVar[str] = BLOCKS
    helpers: ClassVar[tuple[str, ...]] = (SCALES,)

    @property
    def codes_per_element(self) -> int:
        return 2

    @classmethod
    def parse(cls, settings: Fields) -> Mxfp4:
        """Parse the options in config.json."""
        named = settings.data.get("modules_to_not_convert")
        if named is not None and (not isinstance(named, list) or {*named} != IN_16_BITS):
            raise settings.error(
                "modules_to_not_convert",
                f"is {repr(named)[:200]}; weft loads checkpoints with only experts in MXFP4",
            )
        return cls()

    def take_each(
        self, parts: Parts, name: str, count: int, num_outputs: int, num_inputs: int
    ) -> list[Blocks]:
        format = Format.MXFP4
        if num_inputs % format.block.inputs:
            raise refuse(
                parts,
                name,
                f"has rows of {num_inputs} numbers by config.json; MXFP4 has blocks of {format.block.inputs}",
            )
        groups = count, num_outputs, num_inputs // format.block.inputs
        blocks = parts.take_part(name + BLOCKS, ("U8",), *groups, format.block.bytes - 1)
        scales = parts.take_part(name + SCALES, ("U8",), *groups)
        return [
            Blocks(
                (num_outputs, num_inputs),
                format,
                partial(_rows, blocks[expert], scales[expert]),
                torch.bfloat16,
            )
            for expert in range(count)
        ]


def _rows(blocks: Tensor, scales: Tensor) -> Tensor:
    """Rows of blocks, whose bytes have the codes of inputs j and j + 16."""
    rows = temporary((*scales.shape, Format.MXFP4.block.bytes), torch.uint8)
    rows[..., 0] = scales
    first, second = blocks[..., :8], blocks[..., 8:]  # inputs 0 to 15, and 16 to 31
    rows[..., 1::2] = first & 15 | second << 4
    rows[..., 2::2] = first >> 4 | second & 0xF0
    return rows.flatten(1)
