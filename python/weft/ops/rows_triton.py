"""Triton kernels on rows of activations: embeddings, norms, and gathering rows.

`live` is the number of live rows, int64 [1] on the device. Rows from `live` on are neither read nor written. None means
that all rows are live.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from weft.ops.blocks_triton import (
    DENSE,
    MINIMA,
    arguments_of,
    decoded,
    load_codes,
    load_scales,
    place_of,
)
from weft.ops.device_blocks import Stored, num_outputs
from weft.ops.triton_launch import begin, chain_options, is_padding

BLOCK = 1024


@triton.jit
def token_row(Weight, Tokens, row, V, H):
    """The address of the embedding of a row's token, clamped to the vocabulary."""
    token = tl.load(Tokens + row)
    return Weight + tl.minimum(tl.maximum(token, 0), V - 1).to(tl.int64) * H


@triton.jit
def token_numbers(
    Codes, Scales, Lows, Supers, Tokens, row, group, HALF: tl.constexpr, V: tl.constexpr, H: tl.constexpr,
    CODES: tl.constexpr, GROUP: tl.constexpr, HALVES: tl.constexpr, LOWS: tl.constexpr,
):  # fmt: skip
    """Numbers of the embedding of a row's token, clamped to the vocabulary, in quantised weights: in each of `group`
    [G] those in one half, float32 [G, GROUP / HALVES], and 0 after the last. Also their places in the embedding."""
    WIDTH: tl.constexpr = GROUP // HALVES
    token = tl.minimum(tl.maximum(tl.load(Tokens + row), 0), V - 1)
    n = tl.zeros(group.shape, tl.int64) + token
    place = place_of(n, group, 0, V, H, GROUP)
    codes = load_codes(Codes, place, group, H, GROUP, HALVES, False)
    scale, low = load_scales(Scales, Lows, Supers, place, n, group, 0, V, H, GROUP, CODES, LOWS, False)
    value = decoded(codes, low, HALF, CODES, LOWS, tl.float32) * scale[:, None]
    if LOWS == MINIMA:
        value += low[:, None]
    h = group[:, None] * GROUP + HALF * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.where(h < H, value, 0.0), h


@triton.jit
def normed(source, Norm, eps, h, H):
    """The RMS norm of `source` [H], in float32."""
    x = tl.load(source + h, mask=h < H, other=0.0).to(tl.float32)
    weight = tl.load(Norm + h, mask=h < H, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, 0) / H + eps) * weight


@triton.jit(do_not_specialize=["scale"], do_not_specialize_on_alignment=["Live"])
def embed_kernel(
    Weight, Scales, Lows, Supers, Tokens, Live, Out, scale, V: tl.constexpr, H: tl.constexpr, CODES: tl.constexpr,
    GROUP: tl.constexpr, HALVES: tl.constexpr, LOWS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    if is_padding(row, Live):
        return
    if CODES == DENSE:
        h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(token_row(Weight, Tokens, row, V, H) + h, mask=h < H).to(tl.float32) * scale
        tl.store(Out + row * H + h, value.to(Out.dtype.element_ty), mask=h < H)
    else:
        group = tl.program_id(1) * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
        for half in tl.static_range(HALVES):
            value, h = token_numbers(
                Weight, Scales, Lows, Supers, Tokens, row, group, half, V, H, CODES, GROUP, HALVES, LOWS
            )
            tl.store(Out + row * H + h, (value * scale).to(Out.dtype.element_ty), mask=h < H)


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
    Weight, Scales, Lows, Supers, Tokens, EmbedNorm, Hidden, HiddenNorm, Live, Out, embed_eps, hidden_eps, hidden_row,
    V: tl.constexpr, H: tl.constexpr, CODES: tl.constexpr, GROUP: tl.constexpr, HALVES: tl.constexpr,
    LOWS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A program writes half of a row: the normed embedding (0) or the normed hidden state (1)."""
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    if is_padding(row, Live):
        return
    h = tl.arange(0, BLOCK)
    target = Out + (2 * row + tl.program_id(1)) * H
    if tl.program_id(1) == 1:
        value = normed(Hidden + row * hidden_row, HiddenNorm, hidden_eps, h, H)
        tl.store(target + h, value.to(Out.dtype.element_ty), mask=h < H)
    elif CODES == DENSE:
        value = normed(token_row(Weight, Tokens, row, V, H), EmbedNorm, embed_eps, h, H)
        tl.store(target + h, value.to(Out.dtype.element_ty), mask=h < H)
    else:
        group = tl.arange(0, BLOCK // GROUP)
        square = 0.0
        for half in tl.static_range(HALVES):
            part, _ = token_numbers(
                Weight, Scales, Lows, Supers, Tokens, row, group, half, V, H, CODES, GROUP, HALVES, LOWS
            )
            square += tl.sum(tl.sum(part * part, 1), 0)
        for half in tl.static_range(HALVES):  # read again, from the L1 cache
            part, places = token_numbers(
                Weight, Scales, Lows, Supers, Tokens, row, group, half, V, H, CODES, GROUP, HALVES, LOWS
            )
            weight = tl.load(EmbedNorm + places, mask=places < H, other=0.0).to(tl.float32)
            part = part * tl.rsqrt(square / H + embed_eps) * weight
            tl.store(target + places, part.to(Out.dtype.element_ty), mask=places < H)


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
    weight: Stored, tokens: Tensor, out: Tensor, live: Tensor | None = None, scale: float = 1.0
) -> None:
    """Write the embeddings of `tokens` [N], times `scale`, to `out` [N, H], contiguous."""
    grid = (out.shape[0], triton.cdiv(out.shape[1], BLOCK))
    tensors, constants = arguments_of(weight)
    embed_kernel[grid](
        *tensors, tokens.contiguous(), live, out, scale, num_outputs(weight), out.shape[1], *constants, BLOCK,
        **chain_options(out),
    )  # fmt: skip


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
    weight: Stored,
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
    tensors, constants = arguments_of(weight)
    block = max(constants.group, triton.next_power_of_2(size))
    join_norms_kernel[(hidden.shape[0], 2)](
        *tensors, tokens.contiguous(), embed_norm, hidden, hidden_norm, live, out, embed_eps, hidden_eps,
        hidden.stride(0), num_outputs(weight), size, *constants, block, **chain_options(out), num_warps=_warps(size),
    )  # fmt: skip


def take_rows(x: Tensor, index: Tensor, out: Tensor, live: Tensor | None = None) -> None:
    """Launch `weft.ops.rows.take_rows`."""
    _, width, size = x.shape
    grid = (out.shape[0], triton.cdiv(size, BLOCK))
    take_kernel[grid](x, index, live, out, width, size, BLOCK, **chain_options(out))


def _warps(size: int) -> int:
    return 4 if size <= 2048 else 8
