"""Triton kernels on rows of activations: embeddings, norms, and gathering rows.

`live` is the number of live rows, int64 [1] on the device. Rows from `live` on are neither read nor written. None means
that all rows are live.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from weft.ops.triton_launch import begin, chain_options, is_padding

BLOCK = 1024


@triton.jit
def token_row(Weight, Tokens, row, V, H):
    """The address of the embedding of a row's token, clamped to the vocabulary."""
    token = tl.load(Tokens + row)
    return Weight + tl.minimum(tl.maximum(token, 0), V - 1).to(tl.int64) * H


@triton.jit
def normed(source, Norm, eps, h, H):
    """The RMS norm of `source` [H], in float32."""
    x = tl.load(source + h, mask=h < H, other=0.0).to(tl.float32)
    weight = tl.load(Norm + h, mask=h < H, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, 0) / H + eps) * weight


@triton.jit(do_not_specialize=["scale"], do_not_specialize_on_alignment=["Live"])
def embed_kernel(Weight, Tokens, Live, Out, scale, V, H, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    if is_padding(row, Live):
        return
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(token_row(Weight, Tokens, row, V, H) + h, mask=h < H).to(tl.float32) * scale
    tl.store(Out + row * H + h, value.to(Out.dtype.element_ty), mask=h < H)


@triton.jit(do_not_specialize=["eps"], do_not_specialize_on_alignment=["Live"])
def norm_kernel(X, Norm, Live, Out, eps, x_row, out_row, H, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    if is_padding(row, Live):
        return
    h = tl.arange(0, BLOCK)
    value = normed(X + row * x_row, Norm, eps, h, H)
    tl.store(Out + row * out_row + h, value.to(Out.dtype.element_ty), mask=h < H)


@triton.jit(do_not_specialize=["eps"], do_not_specialize_on_alignment=["Live"])
def add_norm_kernel(
    X, Rows, Norm, Live, Out, eps, x_row, rows_row, out_row, H, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):  # fmt: skip
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    if is_padding(row, Live):
        return
    h = tl.arange(0, BLOCK)
    value = normed(Rows + row * rows_row, Norm, eps, h, H)
    value += tl.load(X + row * x_row + h, mask=h < H, other=0.0).to(tl.float32)
    tl.store(Out + row * out_row + h, value.to(Out.dtype.element_ty), mask=h < H)


@triton.jit(do_not_specialize=["embed_eps", "hidden_eps"], do_not_specialize_on_alignment=["Live"])
def join_norms_kernel(
    Weight, Tokens, EmbedNorm, Hidden, HiddenNorm, Live, Out, embed_eps, hidden_eps, hidden_row, V, H,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A program writes half of a row: the normed embedding (0) or the normed hidden state (1)."""
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    if is_padding(row, Live):
        return
    h = tl.arange(0, BLOCK)
    if tl.program_id(1) == 0:
        value = normed(token_row(Weight, Tokens, row, V, H), EmbedNorm, embed_eps, h, H)
    else:
        value = normed(Hidden + row * hidden_row, HiddenNorm, hidden_eps, h, H)
    target = Out + (2 * row + tl.program_id(1)) * H + h
    tl.store(target, value.to(Out.dtype.element_ty), mask=h < H)


@triton.jit(do_not_specialize_on_alignment=["Live"])
def take_kernel(X, Index, Live, Out, T, H, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    if is_padding(row, Live):
        return
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.minimum(tl.maximum(tl.load(Index + row), 0), T - 1)
    value = tl.load(X + (row * T + token) * H + h, mask=h < H)
    tl.store(Out + row * H + h, value, mask=h < H)


def embed(
    weight: Tensor, tokens: Tensor, out: Tensor, live: Tensor | None = None, scale: float = 1.0
) -> None:
    """Write the embeddings of `tokens` [N], times `scale`, to `out` [N, H], contiguous."""
    grid = (out.shape[0], triton.cdiv(out.shape[1], BLOCK))
    embed_kernel[grid](
        weight, tokens.contiguous(), live, out, scale, *weight.shape, BLOCK, **chain_options(out)
    )


def norm(x: Tensor, weight: Tensor, eps: float, out: Tensor, live: Tensor | None = None) -> None:
    """Launch the RMS norm of `weft.ops.linear.Norm`."""
    size = x.shape[1]
    norm_kernel[(x.shape[0],)](
        x, weight, live, out, eps, x.stride(0), out.stride(0), size, triton.next_power_of_2(size),
        **chain_options(out), num_warps=_warps(size),
    )  # fmt: skip


def add_norm(
    x: Tensor, rows: Tensor, weight: Tensor, eps: float, out: Tensor, live: Tensor | None = None
) -> None:
    """Launch `weft.ops.linear.add_norm`."""
    size = x.shape[1]
    add_norm_kernel[(x.shape[0],)](
        x, rows, weight, live, out, eps, x.stride(0), rows.stride(0), out.stride(0), size,
        triton.next_power_of_2(size), **chain_options(out), num_warps=_warps(size),
    )  # fmt: skip


def join_norms(
    weight: Tensor,
    tokens: Tensor,
    embed_norm: Tensor,
    embed_eps: float,
    hidden: Tensor,
    hidden_norm: Tensor,
    hidden_eps: float,
    out: Tensor,
    live: Tensor | None = None,
) -> None:
    """Launch `weft.ops.rows.join_norms`; `out` [N, 2 H] is contiguous."""
    size = hidden.shape[1]
    join_norms_kernel[(hidden.shape[0], 2)](
        weight, tokens.contiguous(), embed_norm, hidden, hidden_norm, live, out, embed_eps, hidden_eps,
        hidden.stride(0), *weight.shape, triton.next_power_of_2(size), **chain_options(out),
        num_warps=_warps(size),
    )  # fmt: skip


def take_rows(x: Tensor, index: Tensor, out: Tensor, live: Tensor | None = None) -> None:
    """Launch `weft.ops.rows.take_rows`."""
    _, width, size = x.shape
    grid = (out.shape[0], triton.cdiv(size, BLOCK))
    take_kernel[grid](x, index, live, out, width, size, BLOCK, **chain_options(out))


def _warps(size: int) -> int:
    return 4 if size <= 2048 else 8
