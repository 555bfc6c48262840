"""The products of `weft.ops.latent` in Triton: each head's part of a row times the head's matrix.

A program computes a tile of outputs of one head for a block of rows. A product of few rows has a block of 16, one of
many rows blocks of 64. Other sizes are constants of the weight's shape, so a row's bits do not depend on the others.

For few rows, one kernel makes a head's queries from compressed ones, too. A program multiplies a share of the inputs.
The last program of a head to arrive adds the shares up in order, and goes on with the head's second product.

`live` is the number of live rows, int64 [1] on the device. Rows from `live` on are neither read nor written. None means
that all rows are live.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.ops.linear import FEW_ROWS
from weft.ops.linear_triton import load_inputs, prefetch_weights
from weft.ops.triton_launch import begin, chain_options, counters, let_next_start, wait_for_earlier
from weft.ops.variants import chosen

MANY_ROWS = 64
OUTPUTS = 64
STAGES = 3
MAX_SHARES = 4
ENOUGH_PROGRAMS = 256  # about two for each multiprocessor of a large GPU
TILE_BYTES = 80 * 1024  # of weights in flight: all GPUs have 99 KiB of shared memory for a program


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


@triton.jit(do_not_specialize=["rows", "q_eps", "kv_eps"], do_not_specialize_on_alignment=["Live"])
def latent_up_queries_kernel(
    X, Latent, QUp, QNorm, KUp, KvNorm, Live, Out, Parts, Counters, rows, x_row, latent_row, q_eps, kv_eps,
    H: tl.constexpr, Q: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, P: tl.constexpr, PP: tl.constexpr,
    R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SHARES: tl.constexpr, STAGES: tl.constexpr,
    AHEAD: tl.constexpr, HP: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """QUp: [H, D + P, Q]; KUp: [H, D, R]. Heads 0..H-1 are queries, head H is the key. DP, PP and HP are D, P and D + P
    padded to powers of 2. If SHARES > 1, Parts: float32 [H, SHARES, BM * (DP + PP + 1)], Counters: int32 [H], zero
    before and after."""
    head, share = tl.program_id(0), tl.program_id(1)
    PER_SHARE: tl.constexpr = (Q + BK * SHARES - 1) // (BK * SHARES) * BK
    EVEN: tl.constexpr = Q % (BK * SHARES) == 0
    HEADROOM: tl.constexpr = 16.0 if X.dtype.element_ty == tl.float16 else 1.0
    low = share * PER_SHARE
    w_head = QUp + head.to(tl.int64) * (D + P) * Q
    let_next_start(CHAINED)
    if CHAINED and head < H:
        prefetch_weights(w_head, 0, low, D + P, Q, HP, False, AHEAD, 0)
    wait_for_earlier(CHAINED)
    row, live = block_of_rows(Live, rows, 0, BM)
    m, n, p = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, PP)
    target = Out + row * ((H + 1) * (R + P)) + head * (R + P)
    if head == H:
        if share == 0:
            source = Latent + row * latent_row
            for start in range(0, R, BN):
                value = normed_latent(source, KvNorm, start + n, live, kv_eps, R, BM, BN)
                mask = live[:, None] & (start + n < R)[None, :]
                tl.store(target[:, None] + start + n[None, :], value.to(Out.dtype.element_ty), mask=mask)
            kept = live[:, None] & (p < P)[None, :]
            part = tl.load(source[:, None] + R + p[None, :], mask=kept, other=0.0)
            tl.store(target[:, None] + R + p[None, :], part, mask=kept)
    else:
        d = tl.arange(0, DP)
        plain_rows = w_head + tl.minimum(d, D - 1)[:, None] * Q
        rotated_rows = w_head + (D + tl.minimum(p, P - 1))[:, None] * Q
        x_rows = X + row[:, None] * x_row
        plain, rotated = tl.zeros([BM, DP], tl.float32), tl.zeros([BM, PP], tl.float32)
        squares = tl.zeros([BM, BK], tl.float32)
        high = tl.where(tl.max(live.to(tl.int32)) > 0, low + PER_SHARE, low)
        for k0 in tl.range(low, high, BK, num_stages=STAGES):
            k = k0 + tl.arange(0, BK)
            if EVEN:
                w_plain, w_rotated = tl.load(plain_rows + k[None, :]), tl.load(rotated_rows + k[None, :])
            else:
                w_plain = tl.load(plain_rows + k[None, :], mask=k[None, :] < Q, other=0.0)
                w_rotated = tl.load(rotated_rows + k[None, :], mask=k[None, :] < Q, other=0.0)
            x = load_inputs(x_rows, k, live, Q, EVEN)
            if QNorm is not None:
                f = x.to(tl.float32)
                squares += f * f
                weight = tl.load(QNorm + k, mask=k < Q, other=0.0).to(tl.float32)
                x = (f * weight[None, :] / HEADROOM).to(X.dtype.element_ty)
            plain = tl.dot(x, tl.trans(w_plain), plain, input_precision="ieee")
            rotated = tl.dot(x, tl.trans(w_rotated), rotated, input_precision="ieee")
        total = tl.sum(squares, 1)
        last = True
        if SHARES > 1:
            WIDE: tl.constexpr = BM * (DP + PP + 1)
            base = Parts + (head * SHARES + share) * WIDE
            plain_cell = m[:, None] * DP + d[None, :]
            rotated_cell = BM * DP + m[:, None] * PP + p[None, :]
            tl.store(base + plain_cell, plain)
            tl.store(base + rotated_cell, rotated)
            tl.store(base + BM * (DP + PP) + m, total)
            tl.debug_barrier()
            last = tl.atomic_add(Counters + head, 1, sem="acq_rel", scope="gpu") == SHARES - 1
            if last:  # in order, so that the sum does not depend on which program is last
                plain, rotated = tl.zeros([BM, DP], tl.float32), tl.zeros([BM, PP], tl.float32)
                total = tl.zeros([BM], tl.float32)
                for s in tl.static_range(SHARES):
                    base = Parts + (head * SHARES + s) * WIDE
                    plain += tl.load(base + plain_cell, cache_modifier=".cg")
                    rotated += tl.load(base + rotated_cell, cache_modifier=".cg")
                    total += tl.load(base + BM * (DP + PP) + m, cache_modifier=".cg")
                tl.store(Counters + head, 0)
        if last:
            if QNorm is not None:
                scale = HEADROOM * tl.rsqrt(total / Q + q_eps)
                plain, rotated = plain * scale[:, None], rotated * scale[:, None]
            kept = live[:, None] & (p < P)[None, :]
            tl.store(target[:, None] + R + p[None, :], rotated.to(Out.dtype.element_ty), mask=kept)
            query = plain.to(Out.dtype.element_ty)
            k_rows = KUp + head.to(tl.int64) * D * R + d[:, None] * R
            end = tl.where(tl.max(live.to(tl.int32)) > 0, R, 0)
            for start in tl.range(0, end, BN, num_stages=STAGES):
                r = start + n
                if D == DP and R % BN == 0:
                    w = tl.load(k_rows + r[None, :])
                else:
                    w = tl.load(k_rows + r[None, :], mask=(d < D)[:, None] & (r < R)[None, :], other=0.0)
                value = tl.dot(query, w, input_precision="ieee")
                mask = live[:, None] & (r < R)[None, :]
                tl.store(target[:, None] + r[None, :], value.to(Out.dtype.element_ty), mask=mask)


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


class Tiles(NamedTuple):
    """The tiles of `latent_up_queries_kernel`: the outputs of the second product and the inputs of the first one, the
    number of shares, and of tiles in flight (`stages`)."""

    outputs: int
    inputs: int
    shares: int
    stages: int


def choose_tiles(heads: int, plain: int, rotated: int, inputs: int, element: int) -> Tiles:
    """Tiles for heads of `plain` + `rotated` outputs, both padded, with elements of `element` bytes."""
    width, block, shares = 128 // element, 128 // element, 1
    while plain * width * element * (STAGES - 1) > TILE_BYTES and width > 16:
        width //= 2
    while (plain + rotated) * block * element * (STAGES - 1) > TILE_BYTES and block > 16:
        block //= 2
    while shares < MAX_SHARES and heads * shares < ENOUGH_PROGRAMS and inputs >= 4 * shares * block:
        shares *= 2
    return Tiles(width, block, shares, STAGES)


def up_queries(
    compressed: Tensor,
    latent: Tensor,
    q_up: Tensor,
    q_norm: Tensor | None,
    q_eps: float,
    k_up: Tensor,
    kv_norm: Tensor,
    kv_eps: float,
    num_rotated: int,
    out: Tensor,
    live: Tensor | None = None,
) -> None:
    """Launch both products of `weft.ops.latent.LatentQueries` for at most `FEW_ROWS` rows of compressed queries. q_up:
    [H * (D + P), Q]; k_up: [H, D, R], both contiguous."""
    heads, size, latent_size = k_up.shape
    rows, inputs = compressed.shape
    plain, rotated = (max(16, triton.next_power_of_2(part)) for part in (size, num_rotated))
    tiles = choose_tiles(heads, plain, rotated, inputs, q_up.element_size())
    parts, arrived = out, out
    if tiles.shares > 1:
        width = FEW_ROWS * (plain + rotated + 1)
        parts = torch.empty(heads * tiles.shares * width, dtype=torch.float32, device=out.device)
        arrived = counters(out, heads)
    latent_up_queries_kernel[(heads + 1, tiles.shares)](
        compressed, latent, q_up, q_norm, k_up, kv_norm, live, out, parts, arrived, rows, compressed.stride(0),
        latent.stride(0), q_eps, kv_eps, heads, inputs, size, plain, num_rotated, rotated, latent_size, FEW_ROWS,
        *tiles, chosen().prefetch_bytes, triton.next_power_of_2(size + num_rotated), **chain_options(out),
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
