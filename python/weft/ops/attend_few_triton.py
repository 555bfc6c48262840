"""Attention of rows with few new tokens in one Triton kernel: norm, rotation, the writing of keys, and shares of the
keys that are joined by the last program to arrive.

Share s of S takes tiles s, s + S, ... of a text's keys, and writes those of its new tokens before it reads them. Tiles
and shares are constants of the model and of the page tables, and a block has room for 16 queries whatever their number:
a query's bits depend on its own text alone.

Keys before a row's base are older than the step. Those of its first tile a program reads while the kernels before it
still run, where the caller vouches that these write none of them, nor bases and page tables (`Rows.settled`). Elsewhere
it only asks for them: what is in the L2 cache is never stale.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math

import torch
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
from weft.ops.triton_launch import chain_options, counters, let_next_start, wait_for_earlier
from weft.ops.variants import chosen

FEW_TOKENS = 16
QUERIES = 16
STAGES = 3
JOINED = 256  # values of a query that are joined at once
MOST_SHARES = 32
MOST_IN_REGISTERS = 128  # values of a key
ENOUGH_PROGRAMS = 128  # one for each multiprocessor of a large GPU, of one row


def choose_shares(num_kv_heads: int, capacity: int, keys: int) -> int:
    """Shares of the keys of texts that may have `capacity` tokens, in tiles of `keys`: a power of two."""
    wanted = min(MOST_SHARES, ENOUGH_PROGRAMS // num_kv_heads, capacity // keys)
    return 1 << max(0, wanted.bit_length() - 1)


@triton.jit
def read_old_keys(
    Cache, PageTable, Base, row, key_head, start, num_columns,
    HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A row's base, how many of its keys are old and in its pages, and those of the tile at `start` with their values
    [BN, DP], zeros where they are not. All around the L1 cache, which need not know what was just written."""
    base = tl.load(Base + row, cache_modifier=".cg")
    old = tl.minimum(base, num_columns * PAGE).to(tl.int32)
    n = start + tl.arange(0, BN)
    d = tl.arange(0, DP)
    inside = n < old
    page = tl.load(PageTable + row * num_columns + n // PAGE, mask=inside, other=0, cache_modifier=".cg").to(
        tl.int64
    )
    entry = Cache + (((page * PAGE + n % PAGE) * 2 * HKV + key_head) * D)[:, None] + d[None, :]
    mask = inside[:, None] & (d < D)[None, :]
    k = tl.load(entry, mask=mask, other=0.0, cache_modifier=".cg")
    v = tl.load(entry + HKV * D, mask=mask, other=0.0, cache_modifier=".cg")
    return base, old, k, v


@triton.jit
def ask_for_keys(
    Cache, PageTable, Base, row, key_head, start, num_columns, num_pages,
    HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Bring the old keys and values of the tile at `start` to the L2 cache. Whatever bases and page tables hold, they
    may be in the making, no address is outside the cache's pages."""
    SIZE: tl.constexpr = Cache.dtype.element_ty.primitive_bitwidth // 8
    LINES: tl.constexpr = DP * SIZE // 128 if DP * SIZE > 128 else 1
    old = tl.minimum(tl.load(Base + row, cache_modifier=".cg"), num_columns * PAGE).to(tl.int32)
    if start < old:
        line = tl.arange(0, 2 * BN * LINES)
        n = tl.minimum(start + line // (2 * LINES), old - 1)
        page = tl.load(PageTable + row * num_columns + n // PAGE, cache_modifier=".cg")
        page = tl.maximum(tl.minimum(page, num_pages - 1), 0).to(tl.int64)
        entry = ((page * PAGE + n % PAGE) * 2 + line // LINES % 2) * HKV + key_head
        address = Cache + entry * D + tl.minimum(line % LINES * (128 // SIZE), D - 1)
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [address.to(tl.int64, bitcast=True)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit(
    do_not_specialize=["width", "offset", "num_columns", "num_pages", "num_positions", "eps", "scale"],
    do_not_specialize_on_alignment=["PageTable", "Base", "Count", "Starts"],
)
def attend_few_kernel(
    QKV, Cache, PageTable, Base, Count, Starts, Rotary, QNorm, KNorm, Out, Parts, Lse, Counters,
    eps, scale, width, offset, num_columns, num_pages, num_positions,
    H: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr,
    BT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SHARES: tl.constexpr, CHUNK: tl.constexpr,
    STAGES: tl.constexpr, REACH: tl.constexpr, SINKS: tl.constexpr, EARLY: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Program (row, key head and block of queries, share). Parts float32 [N * H, SHARES, D], Lse float32
    [N * H, SHARES] and Counters int32 [programs of a share], zero before and after. EARLY: keys
    of earlier steps are asked for (1) or read (2) before the wait."""
    let_next_start(CHAINED)
    G: tl.constexpr = H // HKV
    WIDE: tl.constexpr = (H + 2 * HKV) * D
    row = tl.program_id(0)
    key_head = tl.program_id(1) % HKV
    block = tl.program_id(1) // HKV
    share = tl.program_id(2)
    d = tl.arange(0, DP)
    if EARLY == 1 and CHAINED:
        ask_for_keys(
            Cache,
            PageTable,
            Base,
            row,
            key_head,
            share * BN,
            num_columns,
            num_pages,
            HKV,
            D,
            DP,
            PAGE,
            BN,
        )
    if EARLY == 2:
        base, old, old_k, old_v = read_old_keys(
            Cache, PageTable, Base, row, key_head, share * BN, num_columns, HKV, D, DP, PAGE, BN
        )
    wait_for_earlier(CHAINED)
    if EARLY < 2:
        base = tl.load(Base + row)
    mine, count, first = tokens_of(base, Count, Starts, row, width, offset)
    length = tl.minimum(first + count, num_columns * PAGE)
    alive = tl.minimum(tl.cdiv(length, BN), SHARES)
    if (share < alive) & (block * BM < count * G):
        query = block * BM + tl.arange(0, BM)
        token = query // G
        head = key_head * G + query % G
        live = token < count
        own = QKV + mine * WIDE
        q = load_heads(own + (token * WIDE + head * D)[:, None], d, live, D, DP)
        q = turn(q, QNorm, Rotary, first + token, live, d, eps, num_positions, BM, D, DP)
        position = tl.where(live, tl.minimum(first + token, length - 1), -1)
        if (first // BN % SHARES == share) | ((length - 1) // BN % SHARES == share):
            t = tl.arange(0, BT)
            n = first + t
            new = (t < count) & (n < length) & (n // BN % SHARES == share)
            page = tl.load(PageTable + row * num_columns + n // PAGE, mask=new, other=0).to(tl.int64)
            source = own + (t * WIDE + (H + key_head) * D)[:, None]
            v = load_heads(source + HKV * D, d, new, D, DP)
            k = load_heads(source, d, new, D, DP)
            k = turn(k, KNorm, Rotary, n, new, d, eps, num_positions, BT, D, DP)
            entry = Cache + (((page * PAGE + n % PAGE) * 2 * HKV + key_head) * D)[:, None] + d[None, :]
            written = (page > 0)[:, None] & (d < D)[None, :]
            # Programs of other blocks write the same, and each reads what it wrote itself.
            tl.store(entry, k, mask=written)
            tl.store(entry + HKV * D, v, mask=written)
            tl.debug_barrier()
        m = tl.full([BM], float("-inf"), tl.float32)
        total = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, DP], tl.float32)
        low = 0
        hidden = 0
        if REACH > 0:
            low = tl.maximum(tl.minimum(first + block * BM // G, length - 1) - REACH + 1, 0)
            hidden = hidden_keys(low, share * BN, SHARES * BN, BN, SINKS)
        begin = share * BN
        if EARLY == 2:
            n = begin + tl.arange(0, BN)
            inside = n < length
            new = inside & (n >= old)
            page = tl.load(PageTable + row * num_columns + n // PAGE, mask=new, other=0).to(tl.int64)
            entry = Cache + (((page * PAGE + n % PAGE) * 2 * HKV + key_head) * D)[:, None]
            mask = new[:, None] & (d < D)[None, :]
            k = tl.load(entry + d[None, :], mask=mask, other=old_k)
            v = tl.load(entry + HKV * D + d[None, :], mask=mask, other=old_v)
            seen = (n[None, :] <= position[:, None]) & inside[None, :]
            m, total, acc = attend_tile(q, k, v, seen, scale, m, total, acc)
            begin += SHARES * BN
        for start in tl.range(begin, length - hidden, SHARES * BN, num_stages=STAGES):
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
            seen = (n[None, :] <= position[:, None]) & inside[None, :]
            if REACH > 0:
                seen = seen & ((n[None, :] > position[:, None] - REACH) | (n < SINKS)[None, :])
            m, total, acc = attend_tile(q, k, v, seen, scale, m, total, acc)
        acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        cell = live[:, None] & (d < D)[None, :]
        line = (mine + token) * H + head
        target = Out + line[:, None] * D + d[None, :]
        if alive == 1:
            tl.store(target, acc.to(Out.dtype.element_ty), mask=cell)
        elif SHARES > 1:
            group = row * tl.num_programs(1) + tl.program_id(1)
            line = line * SHARES
            lse = tl.where(total > 0, m + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
            tl.store(Parts + (line + share)[:, None] * D + d[None, :], acc, mask=cell)
            tl.store(Lse + line + share, lse, mask=live)
            tl.debug_barrier()
            if tl.atomic_add(Counters + group, 1, sem="acq_rel", scope="gpu") == alive - 1:
                s = tl.arange(0, SHARES)
                every = tl.load(
                    Lse + line[None, :] + s[:, None], mask=(s < alive)[:, None] & live[None, :],
                    other=float("-inf"), cache_modifier=".cg",
                )  # fmt: skip
                top = tl.max(every, 0)
                top = tl.where(top == float("-inf"), 0.0, top)
                acc = tl.zeros([BM, DP], tl.float32)
                total = tl.zeros([BM], tl.float32)
                # In order, some at once: one after the other would wait as often for memory.
                for s0 in tl.range(0, alive, CHUNK, num_stages=1):
                    c = s0 + tl.arange(0, CHUNK)
                    here = (c < alive)[:, None] & live[None, :]
                    at = line[None, :] + c[:, None]
                    some = tl.load(Lse + at, mask=here, other=float("-inf"), cache_modifier=".cg")
                    part = tl.load(
                        Parts + (at * D)[:, :, None] + d[None, None, :], mask=here[:, :, None] & (d < D)[None, None, :],
                        other=0.0, cache_modifier=".cg",
                    )  # fmt: skip
                    weight = tl.exp2(some - top[None, :])
                    total += tl.sum(weight, 0)
                    acc += tl.sum(part * weight[:, :, None], 0)
                acc = acc / tl.where(total > 0, total, 1.0)[:, None]
                tl.store(target, acc.to(Out.dtype.element_ty), mask=cell)
                tl.store(Counters + group, 0)


def attend_few(call: Call, shares: int | None = None) -> None:
    """`attend` of rows of at most `FEW_TOKENS` new tokens."""
    pages, page, _, num_kv_heads, head_dim = call.cache.shape
    batch, columns = call.page_table.shape
    dim = padded(head_dim)
    keys = keys_of_tile(dim * call.qkv.element_size())
    shares = shares or choose_shares(num_kv_heads, columns * page, keys)
    lines = call.qkv.shape[0] * call.num_heads
    groups = num_kv_heads * triton.cdiv(call.width * (call.num_heads // num_kv_heads), QUERIES)
    parts = lse = arrived = call.out
    if shares > 1:
        parts = torch.empty(lines, shares, head_dim, dtype=torch.float32, device=call.out.device)
        lse = torch.empty(lines, shares, dtype=torch.float32, device=call.out.device)
        arrived = counters(call.out, batch * groups)
    attend_few_kernel[(batch, groups, shares)](
        call.qkv, call.cache, call.page_table.contiguous(), call.base, call.count, call.starts, call.rotary,
        call.q_norm, call.k_norm, call.out, parts, lse, arrived, call.eps, call.scale * math.log2(math.e),
        call.width, call.offset, columns, pages, call.rotary.shape[0],
        call.num_heads, num_kv_heads, head_dim, dim, page, FEW_TOKENS, QUERIES, keys, shares,
        min(shares, max(1, JOINED // dim)), STAGES, call.reach, call.sinks, how_early(call), **chain_options(call.out),
        num_warps=8 if dim >= 128 and call.qkv.element_size() == 4 else 4,
    )  # fmt: skip


def how_early(call: Call) -> int:
    """The kernel's EARLY. In windows the first tile depends on where the new tokens are: nothing. A tile of large heads
    does not fit beside what else the registers hold."""
    if call.reach:
        return 0
    early = {"none": 0, "hinted": 1, "read": 2}[chosen().early_keys]
    return early if call.settled and call.cache.shape[4] <= MOST_IN_REGISTERS else min(early, 1)
