"""How the numbers of a weight matrix are stored, and how a product rounds its input rows. The native kernels have the
same numbers and describe each format (csrc/kernels/layer/formats.h)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch


class Format(IntEnum):
    """A format of numbers. Quantised ones have blocks, a scale for some inputs of one output."""

    F32 = 0
    F16 = 1
    BF16 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q5_0 = 5
    Q5_1 = 6
    Q8_0 = 7
    Q4_K = 8
    Q5_K = 9
    Q6_K = 10
    IQ4_NL = 11
    MXFP4 = 12
    INT4_32 = 13
    INT4_64 = 14
    INT4_128 = 15
    INT8_32 = 16
    INT8_128 = 17
    FP8 = 18

    @property
    def block(self) -> Block:
        """The size of a block. A dense format has blocks of one number."""
        return _BLOCKS[self]

    @property
    def is_quantized(self) -> bool:
        return self > Format.BF16


@dataclass(frozen=True)
class Block:
    """A block: its inputs, its bytes in a row of blocks, and its bytes in a panel's half, for 32 outputs."""

    inputs: int
    bytes: int
    half_bytes: int


_BLOCKS = {
    Format.F32: Block(1, 4, 128),
    Format.F16: Block(1, 2, 64),
    Format.BF16: Block(1, 2, 64),
    Format.Q4_0: Block(32, 18, 576),
    Format.Q4_1: Block(32, 20, 640),
    Format.Q5_0: Block(32, 22, 704),
    Format.Q5_1: Block(32, 24, 768),
    Format.Q8_0: Block(32, 34, 1088),
    Format.Q4_K: Block(256, 144, 4736),
    Format.Q5_K: Block(256, 176, 5760),
    Format.Q6_K: Block(256, 210, 6720),
    Format.IQ4_NL: Block(32, 18, 576),
    Format.MXFP4: Block(32, 17, 576),
    Format.INT4_32: Block(32, 24, 704),
    Format.INT4_64: Block(64, 40, 1216),
    Format.INT4_128: Block(128, 72, 2240),
    Format.INT8_32: Block(32, 36, 1152),
    Format.INT8_128: Block(128, 132, 4224),
    Format.FP8: Block(128, 132, 4224),
}

DENSE_FORMATS = {torch.float32: Format.F32, torch.float16: Format.F16, torch.bfloat16: Format.BF16}
"""The formats of dense matrices, by dtype."""


class Activations(IntEnum):
    """How a product rounds its input rows before it multiplies: not at all; to two bfloat16 parts, 17 bits in all; to
    bfloat16; or to int8 with a scale for each 32 inputs."""

    FLOAT32 = 0
    TWO_BFLOAT16 = 1
    BFLOAT16 = 2
    INT8 = 3


ACTIVATION_DTYPES = {
    "float32": Activations.FLOAT32,
    "bfloat16x2": Activations.TWO_BFLOAT16,
    "bfloat16": Activations.BFLOAT16,
    "int8": Activations.INT8,
}
"""The names that users give to `Activations`."""
