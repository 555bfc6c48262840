"""Products that round their input rows, in tests."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft import _core
from weft.ops.formats import Activations, Format
from weft.ops.linear import Linear
from weft.ops.packing import parts_of

HAS_AMX = _core.can_multiply(Format.BF16, Activations.TWO_BFLOAT16)
NEEDS_AMX = pytest.mark.skipif(not HAS_AMX, reason="needs a processor with AMX")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

Kind = tuple[torch.dtype, Activations]

KINDS = (
    *(pytest.param((dtype, Activations.FLOAT32), id=str(dtype).removeprefix("torch.")) for dtype in DTYPES),
    pytest.param((torch.bfloat16, Activations.BFLOAT16), id="once"),
    pytest.param((torch.bfloat16, Activations.TWO_BFLOAT16), id="twice", marks=NEEDS_AMX),
)
"""Dtypes of weights, and how their products round input rows."""


def activations_of(linear: Linear) -> list[Activations]:
    """How a product on the CPU rounds its input rows, for each of its parts."""
    return [part.activations for part in parts_of(linear.packed.parts)]


def rounded(x: Tensor, activations: Activations) -> Tensor:
    """The input rows of a product, rounded to bfloat16 if it rounds them so. Two parts count as not rounded."""
    return x.bfloat16().to(x.dtype) if activations is Activations.BFLOAT16 else x
