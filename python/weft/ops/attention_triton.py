"""The attention ops on CUDA, in Triton.

A program of `attend_kernel` takes one row, one key head, a block of its queries (the query heads that share
the key head are queries of it) and one share of the keys. Lengths and pages are read on the device, so a
captured launch serves every length; the number of shares is chosen from shapes alone. With several shares
`combine_kernel` joins them.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.ops.library import multiprocessors, require

MAX_SPLITS = 64
DECODE_WIDTH = 16


@triton.jit(
    do_not_specialize=["width", "num_columns", "max_position"],
    do_not_specialize_on_alignment=["PageTable", "Positions"],
)
def plan_kernel(
    PageTable, Positions, Table, Slots, Rotary, width, num_columns, max_position,
    PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    position = tl.load(Positions + token)
    column = position // PAGE
    page = tl.load(PageTable + (token // width) * num_columns + column, mask=column < num_columns, other=0)
    slot = page.to(tl.int64) * PAGE + position % PAGE
    tl.store(Slots + token, slot)
    d = tl.arange(0, DP)
    row = tl.minimum(position, max_position - 1)
    tl.store(Rotary + token * D + d, tl.load(Table + row * D + d, mask=d < D), mask=d < D)


@triton.jit
def rotate_write_kernel(
    QKV, Cache, Slots, Rotary, QNorm, KNorm, eps,
    H: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, HALF)
    mask = i < D // 2
    source = QKV + (token * (H + 2 * HKV) + head) * D + 2 * i
    even = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    odd = tl.load(source + 1, mask=mask, other=0.0).to(tl.float32)
    if head < H + HKV:
        if NORM:
            scale = tl.rsqrt(tl.sum(even * even + odd * odd, 0) / D + eps)
            norm = QNorm + 2 * i if head < H else KNorm + 2 * i
            even = even * scale * tl.load(norm, mask=mask, other=0.0).to(tl.float32)
            odd = odd * scale * tl.load(norm + 1, mask=mask, other=0.0).to(tl.float32)
        cos = tl.load(Rotary + token * D + 2 * i, mask=mask, other=0.0)
        sin = tl.load(Rotary + token * D + 2 * i + 1, mask=mask, other=0.0)
        turned = even * cos - odd * sin
        odd = even * sin + odd * cos
        even = turned
    if head < H:
        target = source
    else:
        target = Cache + (tl.load(Slots + token) * 2 * HKV + head - H) * D + 2 * i
    tl.store(target, even.to(QKV.dtype.element_ty), mask=mask)
    tl.store(target + 1, odd.to(QKV.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=["width", "num_columns"],
    do_not_specialize_on_alignment=["PageTable", "Positions"],
)
def attend_kernel(
    Q, Cache, PageTable, Positions, Out, Lse, scale, width, num_columns, q_row, q_token, q_head,
    H: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    G: tl.constexpr = H // HKV
    row = tl.program_id(0)
    key_head = tl.program_id(1) % HKV
    split = tl.program_id(2)
    query = (tl.program_id(1) // HKV) * BM + tl.arange(0, BM)
    token = query // G
    head = key_head * G + query % G
    live = token < width
    d = tl.arange(0, DP)
    cell = live[:, None] & (d[None, :] < D)
    q = tl.load(
        Q + row.to(tl.int64) * q_row + token[:, None] * q_token + head[:, None] * q_head + d[None, :],
        mask=cell,
        other=0.0,
    )
    position = tl.load(Positions + row * width + token, mask=live, other=-1)
    length = tl.minimum(tl.max(position, 0) + 1, num_columns * PAGE).to(tl.int32)
    share = tl.cdiv(tl.cdiv(length, BN), SPLITS) * BN
    low = split * share
    high = tl.minimum(low + share, length)
    m = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, DP], tl.float32)
    for start in range(low, high, BN):
        n = start + tl.arange(0, BN)
        inside = n < high
        page = tl.load(PageTable + row * num_columns + n // PAGE, mask=inside, other=0).to(tl.int64)
        offset = ((page * PAGE + n % PAGE) * 2 * HKV + key_head) * D
        entry = inside[:, None] & (d[None, :] < D)
        k = tl.load(Cache + offset[:, None] + d[None, :], mask=entry, other=0.0)
        v = tl.load(Cache + HKV * D + offset[:, None] + d[None, :], mask=entry, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        score = tl.where(inside[None, :] & (n[None, :] <= position[:, None]), score, float("-inf"))
        top = tl.maximum(m, tl.max(score, 1))
        safe = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp2(score - safe[:, None])
        fade = tl.exp2(m - safe)
        total = total * fade + tl.sum(p, 1)
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = top
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    line = (row.to(tl.int64) * width + token) * H + head
    line = line * SPLITS + split
    tl.store(Out + line[:, None] * D + d[None, :], acc.to(Out.dtype.element_ty), mask=cell)
    if SPLITS > 1:
        lse = tl.where(total > 0, m + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
        tl.store(Lse + line, lse, mask=live)


@triton.jit
def combine_kernel(Parts, Lse, Out, D: tl.constexpr, DP: tl.constexpr, SPLITS: tl.constexpr):
    line = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    d = tl.arange(0, DP)
    lse = tl.load(Lse + line * SPLITS + split)
    top = tl.max(lse, 0)
    weight = tl.exp2(lse - tl.where(top == float("-inf"), 0.0, top))
    cell = (lse > float("-inf"))[:, None] & (d[None, :] < D)
    part = tl.load(Parts + (line * SPLITS + split)[:, None] * D + d[None, :], mask=cell, other=0.0)
    total = tl.sum(weight, 0)
    out = tl.sum(part * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(Out + line * D + d, out.to(Out.dtype.element_ty), mask=d < D)


def attend(
    qkv: Tensor,
    cache: Tensor,
    page_table: Tensor,
    base: Tensor,
    count: Tensor | None,
    starts: Tensor | None,
    width: int,
    offset: int,
    rotary: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    num_heads: int,
    scale: float,
    out: Tensor,
) -> None:
    """See `weft.ops.attention.attend`."""
    require(starts is None, "rows of different widths are the CPU's")
    first = base if count is None else base + count
    positions = first[:, None] + torch.arange(offset, offset + width, device=base.device)
    slots, turns = kv_plan(page_table, positions, rotary, cache.shape[1])
    rotate_write_(qkv, cache, slots, turns, num_heads, q_norm, k_norm, eps)
    q = qkv.narrow(1, 0, out.shape[1]).view(*positions.shape, num_heads, -1)
    paged_attention(q, cache, page_table, positions, scale, out=out.view(q.shape))


def kv_plan(page_table: Tensor, positions: Tensor, table: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """Once per forward: where every token's key and value go, and its rotation.

    `page_table` [B, P] int32, `positions` [B, T] int64, `table` [max_positions, D/2, 2] float32 (cos, sin). Returns
    slots [N] int64, rows of a cache seen as [pages * page_size, 2, Hkv, D], and rotary [N, D/2, 2].
    """
    count, head_dim = positions.numel(), 2 * table.shape[1]
    slots = torch.empty(count, dtype=torch.int64, device=positions.device)
    rotary = torch.empty(count, *table.shape[1:], dtype=table.dtype, device=table.device)
    plan_kernel[(count,)](
        page_table.contiguous(), positions.contiguous(), table, slots, rotary,
        positions.shape[1], page_table.shape[1], table.shape[0],
        page_size, head_dim, triton.next_power_of_2(head_dim),
    )  # fmt: skip
    return slots, rotary


def rotate_write_(
    qkv: Tensor,
    cache: Tensor,
    slots: Tensor,
    rotary: Tensor,
    num_heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> None:
    """Norm (if weights [D] are given) and rotate the queries of `qkv` [N, (H + 2 Hkv) * D] in place; write rotated keys
    and the values into `cache`."""
    count, width = qkv.shape
    num_kv_heads, head_dim = cache.shape[3:]
    is_normed = q_norm is not None and k_norm is not None
    rotate_write_kernel[(count, width // head_dim)](
        qkv, cache, slots, rotary, q_norm if is_normed else qkv, k_norm if is_normed else qkv, eps,
        num_heads, num_kv_heads, head_dim, triton.next_power_of_2(head_dim // 2), is_normed,
    )  # fmt: skip


def paged_attention(
    q: Tensor,
    cache: Tensor,
    page_table: Tensor,
    positions: Tensor,
    scale: float,
    splits: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of `q` [B, T, H, D] (D contiguous) over a layer's `cache`: [B, T, H, D], new or `out`. `splits` (a
    power of two) overrides the choice of shares."""
    batch, width, num_heads, head_dim = q.shape
    page_size, num_kv_heads = cache.shape[1], cache.shape[3]
    queries = width * (num_heads // num_kv_heads)
    if splits is None:
        capacity = page_table.shape[1] * page_size
        programs = batch * num_kv_heads
        splits = choose_splits(programs, width, capacity, multiprocessors(q.device.index))
    if out is None:
        out = torch.empty(batch, width, num_heads, head_dim, dtype=q.dtype, device=q.device)
    parts, lse = out, out
    if splits > 1:
        parts = torch.empty(*out.shape[:3], splits, head_dim, dtype=torch.float32, device=q.device)
        lse = torch.empty(*out.shape[:3], splits, dtype=torch.float32, device=q.device)
    dim = max(16, triton.next_power_of_2(head_dim))
    block, keys, warps = choose_block(queries, dim * q.element_size())
    attend_kernel[(batch, num_kv_heads * triton.cdiv(queries, block), splits)](
        q, cache, page_table.contiguous(), positions.contiguous(), parts, lse, scale * math.log2(math.e),
        width, page_table.shape[1], q.stride(0), q.stride(1), q.stride(2),
        num_heads, num_kv_heads, head_dim, dim, page_size, block, keys, splits,
        num_warps=warps, num_stages=2,
    )  # fmt: skip
    if splits > 1:
        combine_kernel[(batch * width * num_heads,)](parts, lse, out, head_dim, dim, splits)
    return out


def choose_splits(programs: int, width: int, capacity: int, multiprocessors: int) -> int:
    """Shares of the keys: enough that `programs` fill the GPU twice, but none under 128 keys of the longest
    row. Reading a prompt, which has queries enough, takes one.
    """
    if width > DECODE_WIDTH:
        return 1
    wanted = min(MAX_SPLITS, 2 * multiprocessors // max(1, programs), capacity // 128)
    return 1 << max(0, wanted.bit_length() - 1)


def choose_block(queries: int, row_bytes: int) -> tuple[int, int, int]:
    """Queries and keys of a block, and warps, for heads of `row_bytes`: what shared memory of 99 KiB holds.

    Few choices, so that few kernels are compiled: two for all numbers of queries.
    """
    keys = 64 if row_bytes <= 256 else 32 if row_bytes <= 512 else 16
    many = 64 if row_bytes <= 512 else 32
    return (16, keys, 4) if queries <= 16 else (many, keys, 8)
