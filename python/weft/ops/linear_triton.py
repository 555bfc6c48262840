"""Matmuls of few rows with a weight, in Triton. Norm, bias, activation, softcap and residual are fused into the kernel.

A program computes a tile of outputs for all rows, from a share of the inputs (split-K). With several shares, the last
program of a tile to arrive adds them up in order. Tiles and shares are constants of the weight's shape. So the bits of
a row's result depend neither on the number of rows nor on its place among them.

Quantised weights are read as they are (`weft.ops.blocks_triton`): a program multiplies the inputs by a group's codes,
then adds the sums, times the group's scales, to its sums in float32.

`activate` does what follows the sums for many rows, for which torch computes the matmul.

`live` is the number of live rows, int64 [1] on the device. Rows from `live` on are neither read nor written. Without
live rows, the weight is not read either. None means that all rows are live.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.ops.activation import Epilogue
from weft.ops.activation_triton import activated, gated, scaled_capped
from weft.ops.blocks_triton import (
    DENSE,
    add_product,
    add_scaled,
    arguments_of,
    element_bytes,
    load_codes,
    load_scales,
    place_of,
)
from weft.ops.device_blocks import Stored, num_outputs
from weft.ops.linear import FEW_ROWS
from weft.ops.triton_launch import (
    chain_options,
    counters,
    is_padding,
    let_next_start,
    wait_for_earlier,
    waited,
)
from weft.ops.variants import Variant, chosen

OUTPUTS = 64
MAX_SHARES = 4
ENOUGH_PROGRAMS = 256  # about two for each multiprocessor of a large GPU
WARP = 32
ACTIVATE_BLOCK = 1024


class Tiles(NamedTuple):
    """The outputs and inputs of a tile, the number of shares, and the number of tiles in flight (`stages`). All but
    `stages` affect the bits of a result."""

    outputs: int
    inputs: int
    shares: int
    stages: int


def choose_tiles(outputs: int, inputs: int, element: float, least: int | None = None) -> Tiles:
    """Tiles for a weight [outputs, inputs] with elements of `element` bytes: one wave of programs that fills the GPU.
    With `least`, tiles have half as many inputs as usual, but not fewer than that."""
    variant = chosen()
    block = variant.inputs if element <= 2 else 32
    if least is not None:
        block = max(block // 2, least)
    shares, tiles = 1, triton.cdiv(outputs, OUTPUTS)
    while shares < MAX_SHARES and tiles * shares < ENOUGH_PROGRAMS and inputs >= 4 * shares * block:
        shares *= 2
    if variant.split_wide and tiles >= ENOUGH_PROGRAMS and inputs >= 4 * block:
        shares = 2
    # A tile of half bytes is small, so more of them are in flight.
    stages = variant.stages + (element < 1 and least is None)
    return Tiles(variant.outputs, block, shares, stages)


@triton.jit
def weight_rows(tile, i, N: tl.constexpr, BN: tl.constexpr, GATED: tl.constexpr):
    """The weight's row for row `i` of a tile, clamped to N - 1, and whether the row exists. With GATED, rows of gates
    and of ups alternate in a tile."""
    if GATED:
        column = tile * (BN // 2) + i // 2
        inside = column < N // 2
        n = tl.minimum(column, N // 2 - 1) + i % 2 * (N // 2)
    else:
        column = tile * BN + i
        inside = column < N
        n = tl.minimum(column, N - 1)
    return n, inside


@triton.jit
def prefetch_weights(
    W, tile, k0, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, GATED: tl.constexpr, AHEAD: tl.constexpr,
    PIECES: tl.constexpr,
):  # fmt: skip
    """Prefetch AHEAD bytes of each row of a tile, from input `k0` on, to the L2 cache. PIECES is the number of bulk
    requests for each row; with 0 the prefetch goes line by line."""
    SIZE: tl.constexpr = W.dtype.element_ty.primitive_bitwidth // 8
    if PIECES > 0:
        PIECE: tl.constexpr = AHEAD // PIECES
        piece = tl.arange(0, BN * PIECES)
        n, _ = weight_rows(tile, piece // PIECES, N, BN, GATED)
        k = tl.minimum(k0, K - AHEAD // SIZE) + piece % PIECES * (PIECE // SIZE)
        address = (W + n.to(tl.int64) * K + k).to(tl.int64, bitcast=True)
        tl.inline_asm_elementwise(
            "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;", "=r,l,r", [address, PIECE],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    elif AHEAD > 0:
        LINES: tl.constexpr = AHEAD // 128
        line = tl.arange(0, BN * LINES)
        n, _ = weight_rows(tile, line // LINES, N, BN, GATED)
        k = tl.minimum(k0 + line % LINES * (128 // SIZE), K - 1)
        address = (W + n.to(tl.int64) * K + k).to(tl.int64, bitcast=True)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [address],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def prefetch_codes(
    Codes, tile, group, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, GATED: tl.constexpr, GROUP: tl.constexpr,
    HALVES: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """Prefetch AHEAD bytes of codes of each output of a tile, from a group on, to the L2 cache."""
    WIDTH: tl.constexpr = GROUP // HALVES
    LINE: tl.constexpr = 128 // WIDTH  # the outputs whose codes of a group take a line
    LINES: tl.constexpr = BN // LINE
    if AHEAD > 0:
        line = tl.arange(0, LINES * (AHEAD // WIDTH))
        i = line % LINES * LINE
        if GATED:  # gates lie side by side, and so do ups
            i = line % (LINES // 2) * (2 * LINE) + line % LINES // (LINES // 2)
        n, _ = weight_rows(tile, i, N, BN, GATED)
        ahead = tl.minimum(group + line // LINES, (K - 1) // GROUP)
        address = (Codes + place_of(n, ahead, 0, N, K, GROUP) * WIDTH).to(tl.int64, bitcast=True)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [address],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def load_inputs(x_rows, k, live, K: tl.constexpr, EVEN: tl.constexpr):
    """Inputs `k` of all rows; zeros for rows that are not `live`, and after input K."""
    if EVEN:
        x = tl.load(x_rows + k[None, :], mask=live[:, None], other=0.0)
    else:
        x = tl.load(x_rows + k[None, :], mask=live[:, None] & (k[None, :] < K), other=0.0)
    return x


@triton.jit
def inverse_rms(
    rows, live, num_live, eps, K: tl.constexpr, BM: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """1 / sqrt(mean(x²) + eps) of all rows [BM, K], whose addresses are `rows` [BM, 1]."""
    end = tl.where(num_live > 0, K, 0)
    squares = tl.zeros([BM, BLOCK], tl.float32)
    for k0 in tl.range(0, end, BLOCK, num_stages=STAGES):
        x = load_inputs(rows, k0 + tl.arange(0, BLOCK), live, K, K % BLOCK == 0).to(tl.float32)
        squares += x * x
    return tl.rsqrt(tl.sum(squares, 1) / K + eps)


@triton.jit
def prepared(
    x, squares, k, live, added_rows, added_scale, AddedNorm, total_rows, writes_total, Norm, K: tl.constexpr,
    EVEN: tl.constexpr, HEADROOM: tl.constexpr,
):  # fmt: skip
    """Inputs `k` of all rows, plus normed ones at `added_rows` with AddedNorm, which are written to `total_rows` if
    `writes_total`. With Norm they are then multiplied by its weight, and `squares` has theirs added."""
    dtype: tl.constexpr = x.dtype
    if AddedNorm is not None:
        added = load_inputs(added_rows, k, live, K, EVEN).to(tl.float32)
        weight = tl.load(AddedNorm + k, mask=k < K, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) + added * added_scale[:, None] * weight[None, :]).to(dtype)
        tl.store(total_rows + k[None, :], x, mask=live[:, None] & (k < K)[None, :] & writes_total)
    if Norm is not None:
        f = x.to(tl.float32)
        squares += f * f
        if EVEN:
            weight = tl.load(Norm + k)
        else:
            weight = tl.load(Norm + k, mask=k < K, other=0.0)
        x = (f * weight.to(tl.float32)[None, :] / HEADROOM).to(dtype)
    return x, squares


@triton.jit(
    do_not_specialize=["rows", "eps", "added_eps", "slope", "limit", "shift", "scale", "softcap"],
    do_not_specialize_on_alignment=["Live"],
)
def linear_kernel(
    X, W, Scales, Lows, Supers, Bias, Norm, Residual, Live, Out, Also, Added, AddedNorm, Total, Parts, Counters, rows,
    x_row, residual_row, out_row, also_row, added_row, total_row, eps, added_eps, slope, limit, shift, scale, softcap,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SHARES: tl.constexpr,
    GATED: tl.constexpr, FUNCTION: tl.constexpr, SCALED: tl.constexpr, CAPPED: tl.constexpr, CODES: tl.constexpr,
    GROUP: tl.constexpr, HALVES: tl.constexpr, LOWS: tl.constexpr, STAGES: tl.constexpr, EARLY: tl.constexpr,
    AHEAD: tl.constexpr, PIECES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A program multiplies a share of the inputs for a tile of outputs. If SHARES > 1, Parts: float32 [tiles, SHARES,
    BM * BN + BM], Counters: int32 [tiles], zero before and after. With Added [rows, K], the inputs are X + norm(Added),
    and the programs of the first tile write them to Total. W are numbers [N, K] if CODES is DENSE, else codes with
    Scales, Lows and Supers. Added and codes need EARLY to be false."""
    tile = tl.program_id(0)
    share = tl.program_id(1)
    PER_SHARE: tl.constexpr = (K + BK * SHARES - 1) // (BK * SHARES) * BK
    EVEN: tl.constexpr = K % (BK * SHARES) == 0
    i = tl.arange(0, BN)
    n, inside = weight_rows(tile, i, N, BN, GATED)
    m = tl.arange(0, BM)
    low = share * PER_SHARE
    high = low + PER_SHARE
    let_next_start(CHAINED)
    if Live is not None:
        # The count comes with the step's inputs, whose copy ends before the first kernel of the chain starts. So it may
        # be read before the wait. Bypass the L1 cache, which may have the count of an earlier step.
        rows = tl.minimum(rows, tl.load(Live, cache_modifier=".cg")).to(tl.int32)
        high = tl.where(rows > 0, high, low)
    live = m < rows
    if not EARLY:
        if CHAINED:
            if CODES == DENSE:
                prefetch_weights(W, tile, low, N, K, BN, GATED, AHEAD, PIECES)
            else:
                prefetch_codes(W, tile, low // GROUP, N, K, BN, GATED, GROUP, HALVES, AHEAD)
        wait_for_earlier(CHAINED)
    # With a norm, x is not yet divided by its root mean square, so it may be near the largest float16.
    HEADROOM: tl.constexpr = 16.0 if X.dtype.element_ty == tl.float16 else 1.0
    WIDTH: tl.constexpr = BK if CODES == DENSE else GROUP // HALVES  # the inputs of a product
    acc = tl.zeros([BN, BM] if CODES == DENSE else [BM, BN], tl.float32)
    squares = tl.zeros([BM, WIDTH], tl.float32)
    x_rows = X + m[:, None] * x_row
    added_rows, total_rows, added_scale = x_rows, x_rows, 0.0
    if Added is not None:
        added_rows = Added + m[:, None] * added_row
        added_scale = inverse_rms(added_rows, live, rows, added_eps, K, BM, 4 * BK, STAGES)
        total_rows = Total + m[:, None] * total_row
    w_rows = W + n[:, None].to(tl.int64) * K
    for k0 in tl.range(low, high, BK, num_stages=STAGES):
        if CODES == DENSE:
            k = k0 + tl.arange(0, BK)
            if EVEN:
                w = tl.load(w_rows + k[None, :])
            else:
                w = tl.load(w_rows + k[None, :], mask=k[None, :] < K, other=0.0)
            if EARLY:
                # The first asynchronous loads of weights are issued before the first iteration waits. Inputs are read
                # under a condition on the wait, so that the compiler can't hoist them above it.
                ready = 0
                if k0 == low:
                    if CHAINED and PER_SHARE > (STAGES - 1) * BK:
                        prefetch_weights(W, tile, low + (STAGES - 1) * BK, N, K, BN, GATED, AHEAD, PIECES)
                    ready = waited(CHAINED)
                x = tl.zeros([BM, BK], X.dtype.element_ty)
                if ready == 0:
                    x = load_inputs(x_rows, k, live, K, EVEN)
            else:
                x = load_inputs(x_rows, k, live, K, EVEN)
            x, squares = prepared(
                x, squares, k, live, added_rows, added_scale, AddedNorm, total_rows, tile == 0, Norm, K, EVEN, HEADROOM
            )  # fmt: skip
            acc = tl.dot(w.to(x.dtype), tl.trans(x), acc, input_precision="ieee")
        else:
            for u in tl.static_range(BK // GROUP):
                group = k0 // GROUP + u
                place = place_of(n, group, 0, N, K, GROUP)
                codes = load_codes(W, place, group, K, GROUP, HALVES, EVEN)
                factor, minimum = load_scales(
                    Scales, Lows, Supers, place, n, group, 0, N, K, GROUP, CODES, LOWS, EVEN
                )
                sums = tl.zeros([BM, BN], tl.float32)
                x_sums = tl.zeros([BM], tl.float32)
                for half in tl.static_range(HALVES):
                    k = group * GROUP + half * WIDTH + tl.arange(0, WIDTH)
                    x = load_inputs(x_rows, k, live, K, EVEN)
                    x, squares = prepared(
                        x, squares, k, live, added_rows, added_scale, AddedNorm, total_rows, tile == 0, Norm, K, EVEN,
                        HEADROOM,
                    )  # fmt: skip
                    sums, x_sums = add_product(sums, x_sums, x, codes, minimum, half, CODES, LOWS)
                acc = add_scaled(acc, sums, x_sums, factor, minimum, LOWS)
    if EARLY and Live is not None:
        wait_for_earlier(CHAINED)  # without live rows, no iteration has waited
    if CODES == DENSE:
        acc = tl.trans(acc)
    total = tl.sum(squares, 1)
    last = True
    if SHARES > 1:
        WIDE: tl.constexpr = BM * BN + BM
        base = Parts + (tile * SHARES + share) * WIDE
        cell = m[:, None] * BN + i[None, :]
        tl.store(base + cell, acc, mask=live[:, None])
        if Norm is not None:
            tl.store(base + BM * BN + m, total)
        tl.debug_barrier()
        last = tl.atomic_add(Counters + tile, 1, sem="acq_rel", scope="gpu") == SHARES - 1
        if last:
            # Add all shares in order, including this program's, so that the sum does not depend on which program is
            # last.
            acc = tl.zeros([BM, BN], tl.float32)
            total = tl.zeros([BM], tl.float32)
            for s in tl.static_range(SHARES):
                base = Parts + (tile * SHARES + s) * WIDE
                acc += tl.load(base + cell, mask=live[:, None], other=0.0, cache_modifier=".cg")
                if Norm is not None:
                    total += tl.load(base + BM * BN + m, cache_modifier=".cg")
            tl.store(Counters + tile, 0)
    if last:
        if Norm is not None:
            acc = acc * (HEADROOM * tl.rsqrt(total / K + eps))[:, None]
        if Bias is not None:
            acc += tl.load(Bias + n).to(tl.float32)[None, :]
        if GATED:
            gate, up = tl.split(tl.reshape(acc, (BM, BN // 2, 2)))
            value = gated(gate, up, slope, limit, shift, FUNCTION)
            column = tile * (BN // 2) + tl.arange(0, BN // 2)
            mask = live[:, None] & (column[None, :] < N // 2)
        else:
            value = activated(acc, slope, FUNCTION)
            column = tile * BN + i
            mask = live[:, None] & inside[None, :]
        value = scaled_capped(value, scale, softcap, SCALED, CAPPED)
        if Residual is not None:
            added = tl.load(Residual + m[:, None] * residual_row + column[None, :], mask=mask, other=0.0)
            value += added.to(tl.float32)
        value = value.to(Out.dtype.element_ty)
        tl.store(Out + m[:, None] * out_row + column[None, :], value, mask=mask)
        if Also is not None:
            tl.store(Also + m[:, None] * also_row + column[None, :], value, mask=mask)


def linear(
    x: Tensor,
    weight: Stored,
    bias: Tensor | None,
    norm: Tensor | None,
    eps: float,
    residual: Tensor | None,
    epilogue: Epilogue,
    out: Tensor,
    also: Tensor | None = None,
    live: Tensor | None = None,
    added: Tensor | None = None,
    added_norm: Tensor | None = None,
    added_eps: float = 0.0,
    total: Tensor | None = None,
    tiles: Tiles | None = None,
) -> None:
    """Launch the matmul of `weft.ops.linear.Linear` for at most `FEW_ROWS` rows. weight: [out, in], contiguous,
    or blocks of one matrix; gates come before ups."""
    rows, inputs = x.shape
    outputs, is_dense = num_outputs(weight), isinstance(weight, Tensor)
    tensors, constants = arguments_of(weight)
    # Rows to add beside several groups of codes need many registers.
    least = constants.group if added is not None and not is_dense else None
    tiles = tiles or choose_tiles(outputs, inputs, element_bytes(weight), least)
    num_tiles = triton.cdiv(outputs, tiles.outputs)
    parts, arrived = out, out
    if tiles.shares > 1:
        size = num_tiles * tiles.shares * FEW_ROWS * (tiles.outputs + 1)
        parts = torch.empty(size, dtype=torch.float32, device=x.device)
        arrived = counters(x, num_tiles)
    variant, chain = chosen(), chain_options(x)
    linear_kernel[(num_tiles, tiles.shares)](
        x, *tensors, bias, norm, residual, live, out, also, added, added_norm, total, parts, arrived,
        rows, x.stride(0), row_stride(residual), out.stride(0), row_stride(also), row_stride(added), row_stride(total),
        eps, added_eps, *numbers_of(epilogue), outputs, inputs, FEW_ROWS, tiles.outputs, tiles.inputs, tiles.shares,
        *constants_of(epilogue), *constants, tiles.stages, variant.early and added is None and is_dense,
        variant.prefetch_bytes, prefetch_requests(weight, tiles, variant) if isinstance(weight, Tensor) else 0, **chain,
        num_warps=variant.warps,
    )  # fmt: skip


def row_stride(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.stride(0)


def prefetch_requests(weight: Tensor, tiles: Tiles, variant: Variant) -> int:
    """The number of bulk requests that prefetch a row's bytes; 0 means line by line."""
    size = weight.element_size()
    row, offset = weight.shape[-1] * size, weight.storage_offset() * size
    fits = (
        row % 16 == offset % 16 == 0 and row >= variant.prefetch_bytes > 0
    )  # bulk requests take whole 16 bytes
    return max(1, variant.warps * WARP // tiles.outputs) if variant.bulk and fits else 0


def numbers_of(epilogue: Epilogue) -> tuple[float, float, float, float, float]:
    """The numbers of an epilogue in a kernel's arguments: slope, limit, shift, scale, softcap."""
    return epilogue.slope, epilogue.limit, epilogue.shift, epilogue.scale, epilogue.softcap


def constants_of(epilogue: Epilogue) -> tuple[bool, int, bool, bool]:
    """The constants of an epilogue for which a kernel is compiled: GATED, FUNCTION, SCALED, CAPPED."""
    return epilogue.gated, epilogue.function, epilogue.scale != 1, epilogue.softcap > 0


@triton.jit(
    do_not_specialize=["slope", "limit", "shift", "scale", "softcap"], do_not_specialize_on_alignment=["Live"]
)
def activate_kernel(
    Sums, Residual, Live, Out, inner, sums_row, residual_row, out_row, slope, limit, shift, scale, softcap,
    GATED: tl.constexpr, FUNCTION: tl.constexpr, SCALED: tl.constexpr, CAPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if is_padding(row, Live):
        return
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < inner
    value = tl.load(Sums + row * sums_row + column, mask=mask, other=0.0).to(tl.float32)
    if GATED:
        up = tl.load(Sums + row * sums_row + inner + column, mask=mask, other=0.0).to(tl.float32)
        value = gated(value, up, slope, limit, shift, FUNCTION)
    else:
        value = activated(value, slope, FUNCTION)
    value = scaled_capped(value, scale, softcap, SCALED, CAPPED)
    if Residual is not None:
        value += tl.load(Residual + row * residual_row + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(Out + row * out_row + column, value.to(Out.dtype.element_ty), mask=mask)


def activate(
    sums: Tensor, residual: Tensor | None, epilogue: Epilogue, out: Tensor, live: Tensor | None = None
) -> None:
    """Write what an epilogue makes of `sums` [N, I] to `out` [N, I], and add `residual`. With gates, `sums` is
    [N, 2 I], gates before ups. `out` may be `sums` without gates, or `residual`."""
    rows, inner = out.shape
    activate_kernel[(rows, triton.cdiv(inner, ACTIVATE_BLOCK))](
        sums, residual, live, out, inner, sums.stride(0), row_stride(residual), out.stride(0),
        *numbers_of(epilogue), *constants_of(epilogue), ACTIVATE_BLOCK,
    )  # fmt: skip
