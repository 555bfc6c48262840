"""The products of `weft.ops.latent` in Triton: each head's part of a row times the head's matrix.

A program computes a tile of outputs of one head for a block of rows. A product of few rows has a block of 16, one of
many rows blocks of 64. Other sizes are constants of the weight's shape, so a row's bits do not depend on the others.

`live` is the number of live rows, int64 [1] on the device. Rows from `live` on are neither read nor written. None means
that all rows are live.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from weft.ops.triton_launch import begin, chain_options

FEW_ROWS = 16
MANY_ROWS = 64
OUTPUTS = 64
STAGES = 3


@triton.jit
def block_of_rows(Live, rows, block, BM: tl.constexpr):
    """The rows of a block, and which of them are live."""
    if Live is not None:
        rows = tl.minimum(rows, tl.load(Live)).to(tl.int32)
    row = block * BM + tl.arange(0, BM)
    return row.to(tl.int64), row < rows


@triton.jit
def multiply(
    x_rows, W, n, live, N: tl.constexpr, K: tl.constexpr, TO_N: tl.constexpr, TO_K: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The sums [BM, BN] over K inputs of the rows at `x_rows` [BM] times outputs `n` [BN] of W. An output of W is TO_N
    elements from the next one, an input TO_K."""
    acc = tl.zeros([BM, BN], tl.float32)
    w_columns = W + tl.minimum(n, N - 1)[None, :] * TO_N
    for k0 in tl.range(0, K, BK, num_stages=STAGES):
        k = k0 + tl.arange(0, BK)
        if K % BK == 0:
            x = tl.load(x_rows[:, None] + k[None, :], mask=live[:, None], other=0.0)
            w = tl.load(w_columns + k[:, None] * TO_K)
        else:
            x = tl.load(x_rows[:, None] + k[None, :], mask=live[:, None] & (k < K)[None, :], other=0.0)
            w = tl.load(w_columns + k[:, None] * TO_K, mask=(k < K)[:, None], other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    return acc


@triton.jit
def normed_latent(
    rows, Norm, n, live, eps, R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Elements `n` [BN] of the RMS norms of the rows at `rows` [BM], each of R elements."""
    squares = tl.zeros([BM, BN], tl.float32)
    for start in range(0, R, BN):
        r = start + tl.arange(0, BN)
        mask = live[:, None] & (r < R)[None, :]
        x = tl.load(rows[:, None] + r[None, :], mask=mask, other=0.0).to(tl.float32)
        squares += x * x
    x = tl.load(rows[:, None] + n[None, :], mask=live[:, None] & (n < R)[None, :], other=0.0).to(tl.float32)
    weight = tl.load(Norm + n, mask=n < R, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(squares, 1) / R + eps)[:, None] * weight[None, :]


@triton.jit(do_not_specialize=["rows", "eps"], do_not_specialize_on_alignment=["Live"])
def latent_queries_kernel(
    Queries, Latent, W, Norm, Live, Out, rows, query_row, latent_row, eps, H: tl.constexpr, D: tl.constexpr,
    R: tl.constexpr, P: tl.constexpr, PP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    STAGES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """W: [H, D, R]. Heads 0..H-1 are queries, head H is the key. PP is P, padded to a power of 2."""
    begin(CHAINED)
    tile, head = tl.program_id(0), tl.program_id(1)
    row, live = block_of_rows(Live, rows, tl.program_id(2), BM)
    n = tile * BN + tl.arange(0, BN)
    if head < H:
        source = Queries + row * query_row + head * (D + P)
        value = multiply(source, W + head.to(tl.int64) * D * R, n, live, R, D, 1, R, BM, BN, BK, STAGES)
        rotated = source + D
    else:
        source = Latent + row * latent_row
        value = normed_latent(source, Norm, n, live, eps, R, BM, BN)
        rotated = source + R
    target = (Out + row * ((H + 1) * (R + P)) + head * (R + P))[:, None]
    tl.store(target + n[None, :], value.to(Out.dtype.element_ty), mask=live[:, None] & (n < R)[None, :])
    if tile == 0:
        p = tl.arange(0, PP)
        mask = live[:, None] & (p < P)[None, :]
        part = tl.load(rotated[:, None] + p[None, :], mask=mask, other=0.0)
        tl.store(target + R + p[None, :], part, mask=mask)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["Live"])
def latent_values_kernel(
    X, W, Live, Out, rows, x_row, H: tl.constexpr, V: tl.constexpr, R: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """W: [H, V, R]."""
    begin(CHAINED)
    head = tl.program_id(1)
    row, live = block_of_rows(Live, rows, tl.program_id(2), BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    value = multiply(
        X + row * x_row + head * R, W + head.to(tl.int64) * V * R, n, live, V, R, R, 1, BM, BN, BK, STAGES
    )
    target = (Out + row * (H * V) + head * V)[:, None] + n[None, :]
    tl.store(target, value.to(Out.dtype.element_ty), mask=live[:, None] & (n < V)[None, :])


def block_size(rows: int) -> int:
    """The number of rows in a program's block."""
    return FEW_ROWS if rows <= FEW_ROWS else MANY_ROWS


def num_inputs(element: int) -> int:
    """The number of inputs in a tile of a weight with elements of `element` bytes."""
    return 64 if element == 2 else 32


def queries(
    queries: Tensor,
    latent: Tensor,
    k_up: Tensor,
    norm: Tensor,
    eps: float,
    num_rotated: int,
    out: Tensor,
    live: Tensor | None = None,
) -> None:
    """Launch the products of `weft.ops.latent.LatentQueries`. k_up: [H, D, R], contiguous."""
    heads, size, latent_size = k_up.shape
    rows = queries.shape[0]
    block = block_size(rows)
    grid = (triton.cdiv(latent_size, OUTPUTS), heads + 1, triton.cdiv(rows, block))
    latent_queries_kernel[grid](
        queries, latent, k_up, norm, live, out, rows, queries.stride(0), latent.stride(0), eps, heads, size,
        latent_size, num_rotated, max(1, triton.next_power_of_2(num_rotated)), block, OUTPUTS,
        num_inputs(k_up.element_size()), STAGES, **chain_options(out),
    )  # fmt: skip


def values(attended: Tensor, v_up: Tensor, out: Tensor, live: Tensor | None = None) -> None:
    """Launch the products of `weft.ops.latent.LatentValues`. v_up: [H, V, R], contiguous."""
    heads, size, latent_size = v_up.shape
    rows = attended.shape[0]
    block = block_size(rows)
    latent_values_kernel[(triton.cdiv(size, OUTPUTS), heads, triton.cdiv(rows, block))](
        attended, v_up, live, out, rows, attended.stride(0), heads, size, latent_size, block, OUTPUTS,
        num_inputs(v_up.element_size()), STAGES, **chain_options(out),
    )  # fmt: skip
