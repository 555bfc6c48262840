"""Gates on rows of activations in Triton."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from weft.ops.rows_triton import normed
from weft.ops.triton_launch import begin, chain_options, is_padding


@triton.jit(do_not_specialize=["eps"], do_not_specialize_on_alignment=["Live"])
def gated_norm_kernel(
    X, Gate, Norm, Live, Out, eps, x_row, gate_row, out_row, size, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    """A program computes a head of a row."""
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    if is_padding(row, Live):
        return
    first = tl.program_id(1) * size
    i = tl.arange(0, BLOCK)
    gate = tl.load(Gate + row * gate_row + first + i, mask=i < size, other=0.0).to(tl.float32)
    value = normed(X + row * x_row + first, Norm, eps, i, size) * (gate / (1.0 + tl.exp(-gate)))
    tl.store(Out + row * out_row + first + i, value.to(Out.dtype.element_ty), mask=i < size)


def gated_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, out: Tensor, live: Tensor | None = None
) -> None:
    """Launch `weft.ops.gates.gated_norm`."""
    num_rows, heads, size = x.shape
    if num_rows == 0:
        return
    gated_norm_kernel[(num_rows, heads)](
        x, gate, weight, live, out, eps, x.stride(0), gate.stride(0), out.stride(0), size,
        triton.next_power_of_2(size), **chain_options(out), num_warps=1 if size <= 256 else 4,
    )  # fmt: skip
