"""silu(gate) * up in Triton."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def silu_mul_kernel(GateUp, Out, inner, out_row, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < inner
    gate = tl.load(GateUp + row * 2 * inner + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(GateUp + (row * 2 + 1) * inner + column, mask=mask, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(Out + row * out_row + column, value.to(Out.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor, out: Tensor) -> None:
    """`gate_up` [N, 2 I], gate before up, contiguous; `out` [N, I]."""
    rows, inner = out.shape
    silu_mul_kernel[(rows, triton.cdiv(inner, BLOCK))](gate_up, out, inner, out.stride(0), BLOCK)
