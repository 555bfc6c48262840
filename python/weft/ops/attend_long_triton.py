"""Attention of rows with many new tokens in two Triton kernels: norm, rotation and the writing of keys, then attention.

A program of `attend_kernel` takes one row, one key head and a block of its queries: the query heads that share the key
head are queries of it. Lengths and pages are read on the device.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math

import triton
import triton.language as tl

from weft.ops.attention_parts_triton import (
    Call,
    attend_tile,
    hidden_keys,
    keys_of_tile,
    load_heads,
    padded,
    skip_hidden,
    tokens_of,
    turn,
)
from weft.ops.triton_launch import begin, chain_options

TOKENS = 16  # of a program that writes keys
WARPS = 8


@triton.jit(
    do_not_specialize=["width", "offset", "num_columns", "num_positions", "eps"],
    do_not_specialize_on_alignment=["PageTable", "Base", "Count", "Starts"],
)
def turn_write_kernel(
    QKV, Cache, PageTable, Base, Count, Starts, Rotary, QNorm, KNorm,
    eps, width, offset, num_columns, num_positions,
    H: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, BT: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Program (row and block of tokens, head): queries in place, keys and values to the cache."""
    begin(CHAINED)
    WIDE: tl.constexpr = (H + 2 * HKV) * D
    blocks = tl.cdiv(width, BT)
    row = tl.program_id(0) // blocks
    head = tl.program_id(1)
    mine, count, first = tokens_of(tl.load(Base + row), Count, Starts, row, width, offset)
    token = tl.program_id(0) % blocks * BT + tl.arange(0, BT)
    live = token < count
    d = tl.arange(0, DP)
    position = first + token
    source = QKV + ((mine + token) * WIDE + head * D)[:, None]
    heads = load_heads(source, d, live, D, DP)
    if head < H:
        turned = turn(heads, QNorm, Rotary, position, live, d, eps, num_positions, BT, D, DP)
        tl.store(source + d[None, :], turned, mask=live[:, None] & (d < D)[None, :])
    else:
        if head < H + HKV:
            heads = turn(heads, KNorm, Rotary, position, live, d, eps, num_positions, BT, D, DP)
        column = position // PAGE
        page = tl.load(
            PageTable + row * num_columns + column, mask=live & (column < num_columns), other=0
        ).to(tl.int64)
        target = Cache + (((page * PAGE + position % PAGE) * 2 * HKV + head - H) * D)[:, None]
        tl.store(target + d[None, :], heads, mask=(live & (page > 0))[:, None] & (d < D)[None, :])


@triton.jit(
    do_not_specialize=["width", "offset", "num_columns", "scale"],
    do_not_specialize_on_alignment=["PageTable", "Base", "Count", "Starts"],
)
def attend_kernel(
    QKV, Cache, PageTable, Base, Count, Starts, Out, scale, width, offset, num_columns,
    H: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, REACH: tl.constexpr, SINKS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    begin(CHAINED)
    G: tl.constexpr = H // HKV
    row = tl.program_id(0)
    key_head = tl.program_id(1) % HKV
    block = tl.program_id(1) // HKV
    mine, count, first = tokens_of(tl.load(Base + row), Count, Starts, row, width, offset)
    query = block * BM + tl.arange(0, BM)
    token = query // G
    head = key_head * G + query % G
    live = token < count
    d = tl.arange(0, DP)
    q = load_heads(QKV + ((mine + token) * (H + 2 * HKV) * D + head * D)[:, None], d, live, D, DP)
    position = tl.where(live, first + token, -1)
    length = tl.minimum(tl.max(position, 0) + 1, num_columns * PAGE)
    m = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, DP], tl.float32)
    low = 0
    hidden = 0
    if REACH > 0:
        low = tl.maximum(tl.minimum(first + block * BM // G, length - 1) - REACH + 1, 0)
        hidden = hidden_keys(low, 0, BN, BN, SINKS)
    for start in range(0, length - hidden, BN):
        if REACH > 0:
            n = skip_hidden(start, hidden, BN, SINKS) + tl.arange(0, BN)
            inside = (n < length) & ((n >= low) | (n < SINKS))
        else:
            n = start + tl.arange(0, BN)
            inside = n < length
        page = tl.load(PageTable + row * num_columns + n // PAGE, mask=inside, other=0).to(tl.int64)
        entry = Cache + (((page * PAGE + n % PAGE) * 2 * HKV + key_head) * D)[:, None]
        k = load_heads(entry, d, inside, D, DP)
        v = load_heads(entry + HKV * D, d, inside, D, DP)
        seen = inside[None, :] & (n[None, :] <= position[:, None])
        if REACH > 0:
            seen = seen & ((n[None, :] > position[:, None] - REACH) | (n < SINKS)[None, :])
        m, total, acc = attend_tile(q, k, v, seen, scale, m, total, acc)
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    line = (mine + token) * H + head
    tl.store(
        Out + line[:, None] * D + d[None, :],
        acc.to(Out.dtype.element_ty),
        mask=live[:, None] & (d < D)[None, :],
    )


def attend_long(call: Call) -> None:
    """`attend` of rows of any number of new tokens."""
    _, page, _, num_kv_heads, head_dim = call.cache.shape
    batch, columns = call.page_table.shape
    table, dim = call.page_table.contiguous(), padded(head_dim)
    chain = chain_options(call.out)
    turn_write_kernel[(batch * triton.cdiv(call.width, TOKENS), call.num_heads + 2 * num_kv_heads)](
        call.qkv, call.cache, table, call.base, call.count, call.starts, call.rotary, call.q_norm, call.k_norm,
        call.eps, call.width, call.offset, columns, call.rotary.shape[0],
        call.num_heads, num_kv_heads, head_dim, dim, page, TOKENS, **chain,
    )  # fmt: skip
    queries, keys = choose_block(dim * call.qkv.element_size())
    blocks = triton.cdiv(call.width * (call.num_heads // num_kv_heads), queries)
    attend_kernel[(batch, num_kv_heads * blocks)](
        call.qkv, call.cache, table, call.base, call.count, call.starts, call.out, call.scale * math.log2(math.e),
        call.width, call.offset, columns,
        call.num_heads, num_kv_heads, head_dim, dim, page, queries, keys, call.reach, call.sinks, **chain,
        num_warps=WARPS, num_stages=2,
    )  # fmt: skip


def choose_block(row_bytes: int) -> tuple[int, int]:
    """Queries and keys of a block, for heads of `row_bytes`: what shared memory of 99 KiB holds."""
    return (64 if row_bytes <= 512 else 32, keys_of_tile(row_bytes))
