"""Attention on CUDA, in Triton: one kernel for rows with few new tokens, two or three kernels for rows with many.

`attend_few_kernel` applies norm and rotary embedding, writes keys, and attends. It splits a text's keys into S shares,
as flash-decoding does. Share s attends to the tiles s, s + S, ... and writes the new keys of its tiles before it reads
them. The last program to arrive joins the shares. The sizes of tiles and shares depend only on the model and the width
of page tables, and a block always has room for 16 queries. So the bits of a query's result depend on its own text
alone.

A key has two parts, of sizes D1 and D2. If values are parts of the keys (multi-head latent attention), the first part
is the value, so that a tile is loaded once. Otherwise the second part is empty. DV is the size of a value. P1, P2 and
PV are the powers of two to which these sizes are padded.

Keys before a row's base are older than the step. With `Rows.settled` a program reads those of its first tile while
earlier kernels still run. The caller promises that these kernels don't write the keys, bases and page tables. Without
it, the program only prefetches the keys. That is safe, because the L2 cache is never stale.

For many tokens, `rotate_write_kernel` applies norm and rotary embedding and writes keys, and `attend_kernel` attends.
A norm over several heads needs `squares_kernel` before them. A program processes one head and a tile of a row's tokens;
in `attend_kernel`, a tile is a block of queries of all query heads that share a key head. With `starts`, programs look
up the row of their tile on the device (`tile_of`). So the grid depends on the number of tokens and the number of rows,
not on the product of rows and width.

The cache may have another dtype than queries (`weft.ops.cached`). A key or value is rounded when it is written, and
every query sees it so. Float8 is decoded and encoded by its bits, since GPUs before sm_89 can't convert it. The
products are those of int8's codes: scores are multiplied by the scales of keys, and weights by those of values.

In a call with short and long rows, the long rows go first. A short row may thus attend to keys that a long row writes.

Lengths and pages are read on the device. A row whose first new token is on page 0 pads a batch, and is skipped.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.ops.activation_triton import tanh
from weft.ops.attention import normed_heads, token_stride
from weft.ops.cached import SCALE, as_bytes, first_scale
from weft.ops.cached_triton import from_cache, largest_bits, load_scales, scale_of, to_float8, to_int8
from weft.ops.library import require
from weft.ops.triton_launch import begin, chain_options, counters, let_next_start, wait_for_earlier
from weft.ops.variants import chosen

FEW_TOKENS = 16
QUERIES = 16
STAGES = 3
JOINED = 256  # values of a query that are joined in one pass
MAX_SHARES = 32
MAX_IN_REGISTERS = 128  # the largest head size whose tile of keys fits in registers
ENOUGH_PROGRAMS = 128  # for one row: one for each multiprocessor of a large GPU

LONG_TOKENS = 16  # tokens per program of `rotate_write_kernel`
LONG_WARPS = 8
LONG_STAGES = 2


def attend(*args: Any) -> None:
    """Launch the kernels of `weft.ops.attention.attend`."""
    call = Call(*args)
    first, dtype = call.sizes[0], call.keys.dtype
    require(
        dtype in (call.qkv.dtype, torch.float8_e4m3fn, torch.int8),
        f"on CUDA cached keys are {call.qkv.dtype} as qkv, float8_e4m3fn or int8; got {dtype}",
    )
    require(
        first % 2 == 0 or call.first_rotated + 2 * call.num_pairs <= first,
        f"on CUDA values of {first} elements inside keys can't end within a rotated pair",
    )
    for tensor in (call.qkv, call.gate):
        require(
            tensor is None or tensor.stride(1) == 1, "elements of a token of qkv and gate must be contiguous"
        )
    num_rows = call.page_table.shape[0]
    if call.num_short:
        num_few = call.num_short if call.short_width <= FEW_TOKENS else 0
    else:
        num_few = num_rows if call.width <= FEW_TOKENS else 0
    if num_few < num_rows:
        attend_long(call, num_few)
    if num_few:
        attend_few(call, num_few)


@dataclass(frozen=True)
class Call:
    """The arguments of `weft.ops.attention.attend`, in its operation's order."""

    qkv: Tensor
    keys: Tensor
    values: Tensor
    page_table: Tensor
    base: Tensor
    count: Tensor | None
    starts: Tensor | None
    width: int
    offset: int
    settled: bool
    num_short: int
    short_width: int
    rotary: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float
    num_heads: int
    scale: float
    softcap: float
    sink_logits: Tensor | None
    window: int
    sinks: int
    out: Tensor
    first_rotated: int = 0
    gate: Tensor | None = None

    @property
    def reach(self) -> int:
        """The window without sinks (`Window.reach`); 0 means no limit."""
        return self.window - self.sinks

    @property
    def values_in_keys(self) -> bool:
        return self.keys.storage_offset() == self.values.storage_offset()

    @property
    def cache(self) -> Tensor:
        """The keys, in float8 as bytes."""
        return as_bytes(self.keys)

    @property
    def scales(self) -> Tensor | None:
        """The scales of int8, from those of the first token on; None for other dtypes."""
        keys = self.keys
        if keys.dtype is not torch.int8:
            return None
        pages, page_size, num_heads, key_size = keys.shape
        numbers = num_heads * (key_size + (0 if self.values_in_keys else self.values.shape[3]))
        token = token_stride(keys)
        tokens = keys.as_strided((pages, page_size, token), (page_size * token, token, 1))
        return tokens.view(SCALE)[..., first_scale(numbers) // SCALE.itemsize :]

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """D1, P1, D2, P2, DV and PV."""
        size, value = self.keys.shape[3], self.values.shape[3]
        first = value if self.values_in_keys else size
        return first, padded(first), size - first, padded(size - first), value, padded(value)

    @property
    def row_bytes(self) -> int:
        """Bytes of a key with which the kernels compute."""
        _, first, _, rest, _, _ = self.sizes
        return (first + rest) * self.qkv.element_size()

    @property
    def num_pairs(self) -> int:
        """The number of rotated pairs of a head's dimensions."""
        return 0 if self.rotary is None else self.rotary.shape[1]

    @property
    def head_constants(self) -> tuple[int, ...]:
        """The constants PAIRS, FROM, QHEADS and KHEADS of kernels that norm and rotate heads."""
        heads = (normed_heads(norm, self.keys) for norm in (self.q_norm, self.k_norm))
        return self.num_pairs, self.first_rotated, *heads

    @property
    def gate_row(self) -> int:
        return 0 if self.gate is None else self.gate.stride(0)

    @property
    def num_positions(self) -> int:
        return 0 if self.rotary is None else self.rotary.shape[0]

    @property
    def score_scales(self) -> tuple[float, float]:
        """`scale` and `cap` of `attend_tile`."""
        log2_e = math.log2(math.e)
        if self.softcap:
            return self.scale / self.softcap, self.softcap * log2_e
        return self.scale * log2_e, 0.0


def padded(size: int) -> int:
    """The size with which kernels compute: a power of two, at least 16, or 0."""
    return max(16, int(triton.next_power_of_2(size))) if size else 0


def keys_of_tile(row_bytes: int) -> int:
    """The number of keys in a tile, for heads of `row_bytes` bytes."""
    return 64 if row_bytes <= 256 else 32 if row_bytes <= 512 else 16


@triton.jit
def tokens_of(base, Count, Starts, PageTable, row, width, offset, num_columns, PAGE: tl.constexpr):
    """A row's first token (its index in the call), the row's number of tokens, and the first token's position in the
    text. The number is 0 for a row that pads a batch."""
    first = base
    if Count is not None:
        first += tl.load(Count + row)
    if Starts is not None:
        begin_token = tl.load(Starts + row)
        count = (tl.load(Starts + row + 1) - begin_token).to(tl.int32)
    else:
        begin_token = row.to(tl.int64) * width
        count = width
    first = (first + offset).to(tl.int32)
    column = first // PAGE
    # Bypass the L1 cache, because `attend_few_kernel` may call this while earlier kernels run.
    page = tl.load(
        PageTable + row * num_columns + column, mask=column < num_columns, other=1, cache_modifier=".cg"
    )
    return begin_token, tl.where(page > 0, count, 0), first


@triton.jit
def tile_of(Starts, tile, first_row, num_rows, width, G: tl.constexpr, BM: tl.constexpr, ROWS: tl.constexpr):
    """The row of tile `tile` among `num_rows` rows from `first_row` on, and the tile's number in the row. A tile has BM
    queries, G of each token. Without Starts, all rows have `width` tokens. A tile may have no queries."""
    if Starts is None:
        tiles = tl.cdiv(width * G, BM)
        row = tile // tiles
        number = tile % tiles
    else:
        # The first tile of the r-th row is (tokens before the row) * G // BM + r. Each row thus has a tile for each
        # block of its queries, and no program sums up the tiles of the rows before its own.
        r = tl.arange(0, ROWS)
        begin_token = tl.load(Starts + first_row + r, mask=r < num_rows, other=0)
        first_tile = (begin_token - tl.load(Starts + first_row)).to(tl.int32) * G // BM + r
        begun = (r < num_rows) & (first_tile <= tile)
        row = tl.sum(begun.to(tl.int32), 0) - 1
        number = tile - tl.max(tl.where(begun, first_tile, 0), 0)
    return first_row + row, number


@triton.jit
def load_heads(at, d, live, D: tl.constexpr, DP: tl.constexpr):
    """Load heads [R, DP] from the addresses `at` [R, 1]. Rows that are not `live` [R], and columns from D on, are
    zero."""
    if D == DP:
        heads = tl.load(at + d[None, :], mask=live[:, None], other=0.0)
    else:
        heads = tl.load(at + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0)
    return heads


@triton.jit
def sum_squares(heads):
    """The sum of the squares of each head in `heads` [R, DP]."""
    f = heads.to(tl.float32)
    return tl.sum(f * f, 1)


@triton.jit
def sum_all_squares(at, live, R: tl.constexpr, SIZE: tl.constexpr):
    """The sums of the squares of SIZE elements from each address in `at` [R] on, for the `live` ones."""
    BLOCK: tl.constexpr = 256
    squares = tl.zeros([R, BLOCK], tl.float32)
    for start in range(0, SIZE, BLOCK):
        d = start + tl.arange(0, BLOCK)
        mask = live[:, None] & (d < SIZE)[None, :]
        f = tl.load(at[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
        squares += f * f
    return tl.sum(squares, 1)


@triton.jit
def rotate(
    heads, head, squares, Norm, Rotary, positions, live, eps, num_positions, R: tl.constexpr, FIRST: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, SIZE: tl.constexpr, PAIRS: tl.constexpr, FROM: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """Norm `heads` [R, DP] if there is a norm, and rotate adjacent pairs by the (cos, sin) of `positions`.

    They are the D dimensions from FIRST on of heads of size SIZE, of which PAIRS pairs from dimension FROM on are
    rotated. `squares` [R] are the sums of squares over all dimensions of HEADS heads. With several, head `head` has its
    part of Norm."""
    # The rotated dimensions of this part are LOW..HIGH-1, as far as it has them.
    LOW: tl.constexpr = FROM - FIRST
    HIGH: tl.constexpr = LOW + 2 * PAIRS
    ROTATES: tl.constexpr = PAIRS > 0 and HIGH > 0 and LOW < D
    if Norm is not None or ROTATES:
        f = heads.to(tl.float32)
        d = tl.arange(0, DP)
        if Norm is not None:
            scale = tl.rsqrt(squares / (SIZE * HEADS) + eps)
            if HEADS > 1:
                at = Norm + FIRST + (head * SIZE + tl.zeros([R], tl.int32))[:, None]
                weight = load_heads(at, d, live, D, DP).to(tl.float32)
            else:
                weight = tl.load(Norm + FIRST + d, mask=d < D, other=0.0).to(tl.float32)[None, :]
            f = f * scale[:, None] * weight
        if ROTATES:
            line = tl.minimum(positions, num_positions - 1)
            table = Rotary + line[:, None] * 2 * PAIRS - LOW
            if LOW > 0 or D > HIGH:
                # Other pairs are rotated by nothing: cos is 1, sin is 0.
                inside = live[:, None] & ((d >= LOW) & (d < HIGH) & (d < D))[None, :]
                still = (1 - d % 2).to(tl.float32)[None, :] + tl.zeros([R, DP], tl.float32)
                angles = tl.load(table + d[None, :], mask=inside, other=still)
            else:
                angles = load_heads(table, d, live, D, DP)
            even, odd = tl.split(tl.reshape(f, (R, DP // 2, 2)))
            cos, sin = tl.split(tl.reshape(angles, (R, DP // 2, 2)))
            f = tl.reshape(tl.join(even * cos - odd * sin, even * sin + odd * cos), (R, DP))
        heads = f.to(heads.dtype)
    return heads


@triton.jit
def load_parts(
    tokens, head, Norm, squares, Rotary, positions, live, eps, num_positions, R: tl.constexpr, D1: tl.constexpr,
    P1: tl.constexpr, D2: tl.constexpr, P2: tl.constexpr, PAIRS: tl.constexpr, FROM: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Load both parts of heads and `rotate` them. `tokens` [R] are addresses of first heads, and `head` is a number or
    numbers [R]. Without a second part, the first one is returned twice. `squares` is for a norm over several heads."""
    at = (tokens + head * (D1 + D2))[:, None]
    heads = load_heads(at, tl.arange(0, P1), live, D1, P1)
    if HEADS == 1:
        squares = sum_squares(heads)
    if D2 > 0:
        rest = load_heads(at + D1, tl.arange(0, P2), live, D2, P2)
        if HEADS == 1:
            squares += sum_squares(rest)
    heads = rotate(
        heads, head, squares, Norm, Rotary, positions, live, eps, num_positions, R, 0, D1, P1, D1 + D2, PAIRS, FROM,
        HEADS,
    )  # fmt: skip
    if D2 > 0:
        rest = rotate(
            rest, head, squares, Norm, Rotary, positions, live, eps, num_positions, R, D1, D2, P2, D1 + D2, PAIRS, FROM,
            HEADS,
        )  # fmt: skip
    else:
        rest = heads
    return heads, rest


@triton.jit
def store_parts(
    at, heads, rest, live, Scales, scale_at, D1: tl.constexpr, P1: tl.constexpr, D2: tl.constexpr, P2: tl.constexpr,
):  # fmt: skip
    """Store the parts of `live` heads at the addresses `at` [R, 1], and in int8 their scales at `scale_at` [R]."""
    if at.dtype.element_ty == tl.uint8:
        heads = to_float8(heads)
        rest = to_float8(rest)
    elif at.dtype.element_ty == tl.int8:
        largest = largest_bits(heads)
        if D2 > 0:
            largest = tl.maximum(largest, largest_bits(rest))
        scale, factor = scale_of(largest)
        tl.store(Scales + scale_at, scale.to(tl.bfloat16), mask=live)
        heads = to_int8(heads, factor)
        rest = to_int8(rest, factor)
    d = tl.arange(0, P1)
    tl.store(at + d[None, :], heads, mask=live[:, None] & (d < D1)[None, :])
    if D2 > 0:
        e = tl.arange(0, P2)
        tl.store(at + D1 + e[None, :], rest, mask=live[:, None] & (e < D2)[None, :])


@triton.jit
def store_result(
    acc, Gate, Out, token, head, gate_row, cell, H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr
):
    """Store `acc` [BM, DP] as the result of heads `head` [BM] of tokens `token` [BM], where `cell` says so, after it is
    multiplied by sigmoid(Gate)."""
    d = tl.arange(0, DP)[None, :]
    if Gate is not None:
        gate = tl.load(Gate + (token * gate_row + head * D)[:, None] + d, mask=cell, other=0.0).to(tl.float32)
        acc = acc / (1.0 + tl.exp(-gate))
    tl.store(Out + ((token * H + head) * D)[:, None] + d, acc.to(Out.dtype.element_ty), mask=cell)


@triton.jit
def hidden_keys(low, begin, STEP: tl.constexpr, BN: tl.constexpr, SINKS: tl.constexpr):
    """The number of keys that a program skips, a multiple of STEP. The program's tiles begin at `begin` and are STEP
    apart. No query sees the keys between the tiles of sinks and `low`."""
    after_sinks = tl.cdiv(tl.maximum(tl.cdiv(SINKS, BN) * BN - begin, 0), STEP)
    after_hidden = tl.cdiv(tl.maximum(low // BN * BN - begin, 0), STEP)
    return tl.maximum(after_hidden - after_sinks, 0) * STEP


@triton.jit
def skip_hidden(start, hidden, BN: tl.constexpr, SINKS: tl.constexpr):
    """The first key of the tile at `start`. Tiles after those of sinks move by the `hidden` keys that are skipped."""
    return start + tl.where(start >= tl.cdiv(SINKS, BN) * BN, hidden, 0)


@triton.jit
def attend_tile(
    q, q2, k, k2, v, key_scale, value_scale, seen, scale, cap, m, total, acc, D2: tl.constexpr, CAPPED: tl.constexpr,
    SCALED: tl.constexpr,
):  # fmt: skip
    """Update the online softmax of queries with a tile of keys and values `v`. `q` and `k` are the first parts of
    queries and keys, `q2` and `k2` the second ones. `m`, `total` and `acc` are the softmax's running maximum, sum and
    weighted values. `seen` marks the keys that each query sees. Scores are in units of log 2: `scale` q k, or `cap`
    tanh(`scale` q k) if CAPPED. If SCALED, keys and values are codes, and `key_scale` and `value_scale` [BN] their
    scales."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee")
    if D2 > 0:
        score = tl.dot(q2, tl.trans(k2), acc=score, input_precision="ieee")
    if SCALED:
        score *= key_scale[None, :]
    score *= scale
    if CAPPED:
        score = cap * tanh(score)
    score = tl.where(seen, score, float("-inf"))
    peak = tl.maximum(m, tl.max(score, 1))
    safe = tl.where(peak == float("-inf"), 0.0, peak)
    p = tl.exp2(score - safe[:, None])
    fade = tl.exp2(m - safe)
    total = total * fade + tl.sum(p, 1)
    if SCALED:
        # Scales may be small, and float16 has few bits for numbers below 2^-14.
        p *= value_scale[None, :] * 256.0
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee") * (1.0 / 256.0)
    else:
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return peak, total, acc


def choose_shares(num_kv_heads: int, capacity: int, keys: int) -> int:
    """The number of shares, a power of two, for texts of up to `capacity` tokens in tiles of `keys` keys."""
    limit = min(MAX_SHARES, ENOUGH_PROGRAMS // num_kv_heads, capacity // keys)
    return 1 << max(0, limit.bit_length() - 1)


@triton.jit
def begin_softmax(SinkLogits, head, live, BM: tl.constexpr, PV: tl.constexpr):
    """The softmax of `attend_tile` before its first key. The logits of sinks count for `live` queries; their values are
    0."""
    if SinkLogits is not None:
        m = tl.load(SinkLogits + head, mask=live, other=float("-inf")) * 1.4426950408889634
        total = tl.where(live, 1.0, 0.0)
    else:
        m = tl.full([BM], float("-inf"), tl.float32)
        total = tl.zeros([BM], tl.float32)
    return m, total, tl.zeros([BM, PV], tl.float32)


@triton.jit
def read_old_keys(
    Cache, PageTable, Base, row, key_head, start, num_columns,
    HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Read the old keys and values of the tile at `start`, both of size D. Returns the row's base, the number of its
    old keys that have pages, and the tile's keys and values [BN, DP], zeros beyond the old ones."""
    # Bypass the L1 cache, which may not have the latest writes of other kernels.
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
def prefetch_keys(
    Cache, PageTable, Base, row, key_head, start, num_columns, num_pages,
    HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Prefetch the old keys and values of the tile at `start`, both of size D, to the L2 cache."""
    # An earlier kernel may still write bases and page tables, so every address is clamped to the cache's pages.
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


@triton.jit
def write_new_keys(
    Cache, Scales, PageTable, Rotary, KNorm, row_qkv, row, key_head, share, count, first, length,
    eps, num_columns, num_positions,
    H: tl.constexpr, HKV: tl.constexpr, D1: tl.constexpr, P1: tl.constexpr, D2: tl.constexpr, P2: tl.constexpr,
    DV: tl.constexpr, PV: tl.constexpr, IN_KEYS: tl.constexpr, PAIRS: tl.constexpr, FROM: tl.constexpr,
    KHEADS: tl.constexpr, WIDE: tl.constexpr, TOKEN: tl.constexpr, PAGE: tl.constexpr, BT: tl.constexpr,
    BN: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Rotate the row's new keys in the tiles of `share`, and write them and their values to the cache. `row_qkv` points
    to the row's first token."""
    DK: tl.constexpr = D1 + D2
    if (first // BN % SHARES == share) | ((length - 1) // BN % SHARES == share):
        t = tl.arange(0, BT)
        n = first + t
        new = (t < count) & (n < length) & (n // BN % SHARES == share)
        page = tl.load(PageTable + row * num_columns + n // PAGE, mask=new, other=0).to(tl.int64)
        source = row_qkv + t * WIDE + H * DK
        squares = 0.0
        if KHEADS > 1:
            squares = sum_all_squares(source, new, BT, KHEADS * DK)
        k, k2 = load_parts(
            source, key_head, KNorm, squares, Rotary, n, new, eps, num_positions, BT, D1, P1, D2, P2, PAIRS, FROM,
            KHEADS,
        )  # fmt: skip
        entry = Cache + ((page * PAGE + n % PAGE) * TOKEN)[:, None]
        scale_at = (page * PAGE + n % PAGE) * (TOKEN // 2) + key_head
        # Programs of other blocks write the same values. Each reads its own writes.
        store_parts(entry + key_head * DK, k, k2, page > 0, Scales, scale_at, D1, P1, D2, P2)
        if not IN_KEYS:
            v = load_heads((source + HKV * DK + key_head * DV)[:, None], tl.arange(0, PV), new, DV, PV)
            place = entry + HKV * DK + key_head * DV
            store_parts(place, v, v, page > 0, Scales, scale_at + HKV, DV, PV, 0, 0)
        tl.debug_barrier()


@triton.jit
def attend_first_tile(
    q, position, Cache, PageTable, row, key_head, start, old, old_k, old_v, length, scale, cap, num_columns,
    m, total, acc,
    HKV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PAGE: tl.constexpr, BN: tl.constexpr, CAPPED: tl.constexpr,
):  # fmt: skip
    """Attend to the tile at `start`, of which `read_old_keys` has read the old keys. Only its new keys are read here.
    `m`, `total` and `acc` are those of `attend_tile`."""
    d = tl.arange(0, DP)
    n = start + tl.arange(0, BN)
    inside = n < length
    new = inside & (n >= old)
    page = tl.load(PageTable + row * num_columns + n // PAGE, mask=new, other=0).to(tl.int64)
    entry = Cache + (((page * PAGE + n % PAGE) * 2 * HKV + key_head) * D)[:, None]
    mask = new[:, None] & (d < D)[None, :]
    k = from_cache(tl.load(entry + d[None, :], mask=mask, other=old_k), q)
    v = from_cache(tl.load(entry + HKV * D + d[None, :], mask=mask, other=old_v), q)
    seen = (n[None, :] <= position[:, None]) & inside[None, :]
    return attend_tile(q, q, k, k, v, 1.0, 1.0, seen, scale, cap, m, total, acc, 0, CAPPED, False)


@triton.jit
def attend_share(
    q, q2, position, Cache, Scales, PageTable, row, key_head, begin, low, hidden, length, scale, cap, num_columns,
    m, total, acc,
    HKV: tl.constexpr, D1: tl.constexpr, P1: tl.constexpr, D2: tl.constexpr, P2: tl.constexpr, DV: tl.constexpr,
    PV: tl.constexpr, IN_KEYS: tl.constexpr, CAPPED: tl.constexpr, TOKEN: tl.constexpr, PAGE: tl.constexpr,
    BN: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr, REACH: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """Attend to the tiles at `begin`, `begin` + STEP, ... With REACH, a query sees only the last REACH keys and the
    sinks, and `hidden` keys before `low` are skipped. `m`, `total` and `acc` are those of `attend_tile`."""
    DK: tl.constexpr = D1 + D2
    for start in tl.range(begin, length - hidden, STEP, num_stages=STAGES):
        if REACH > 0:
            n = skip_hidden(start, hidden, BN, SINKS) + tl.arange(0, BN)
            inside = (n < length) & ((n >= low) | (n < SINKS))
        else:
            n = start + tl.arange(0, BN)
            inside = n < length
        page = tl.load(PageTable + row * num_columns + n // PAGE, mask=inside, other=0).to(tl.int64)
        entry = Cache + ((page * PAGE + n % PAGE) * TOKEN)[:, None]
        scale_at = (page * PAGE + n % PAGE) * (TOKEN // 2) + key_head
        k = load_heads(entry + key_head * DK, tl.arange(0, P1), inside, D1, P1)
        k = from_cache(k, q)
        key_scale = load_scales(Scales, scale_at, inside)
        k2 = k
        if D2 > 0:
            k2 = load_heads(entry + key_head * DK + D1, tl.arange(0, P2), inside, D2, P2)
            k2 = from_cache(k2, q)
        v = k
        value_scale = key_scale
        if not IN_KEYS:
            v = load_heads(entry + HKV * DK + key_head * DV, tl.arange(0, PV), inside, DV, PV)
            v = from_cache(v, q)
            value_scale = load_scales(Scales, scale_at + HKV, inside)
        seen = (n[None, :] <= position[:, None]) & inside[None, :]
        if REACH > 0:
            seen = seen & ((n[None, :] > position[:, None] - REACH) | (n < SINKS)[None, :])
        m, total, acc = attend_tile(
            q, q2, k, k2, v, key_scale, value_scale, seen, scale, cap, m, total, acc, D2, CAPPED, Scales is not None,
        )  # fmt: skip
    return m, total, acc


@triton.jit
def join_shares(
    m, total, acc, query_line, live, cell, Gate, Out, Parts, Lse, Counters, group, token, head, gate_row, share, alive,
    H: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, SHARES: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Store the result `acc` of a share, and add 1 to the counter of `group`. The last of the `alive` shares to arrive
    joins all of them, and stores the result (`store_result`). `query_line` [BM] numbers the queries in Parts and Lse;
    `cell` [BM, DP] marks the values of `live` queries."""
    d = tl.arange(0, DP)
    line = query_line * SHARES
    lse = tl.where(total > 0, m + tl.log2(tl.where(total > 0, total, 1.0)), float("-inf"))
    tl.store(Parts + (line + share)[:, None] * D + d[None, :], acc, mask=cell)
    tl.store(Lse + line + share, lse, mask=live)
    tl.debug_barrier()
    if tl.atomic_add(Counters + group, 1, sem="acq_rel", scope="gpu") == alive - 1:
        s = tl.arange(0, SHARES)
        all_lse = tl.load(
            Lse + line[None, :] + s[:, None], mask=(s < alive)[:, None] & live[None, :],
            other=float("-inf"), cache_modifier=".cg",
        )  # fmt: skip
        peak = tl.max(all_lse, 0)
        peak = tl.where(peak == float("-inf"), 0.0, peak)
        acc = tl.zeros([BM, DP], tl.float32)
        total = tl.zeros([BM], tl.float32)
        # Join in the order of shares. Loading a chunk of shares at once waits for memory less often than share by
        # share.
        for s0 in tl.range(0, alive, CHUNK, num_stages=1):
            c = s0 + tl.arange(0, CHUNK)
            here = (c < alive)[:, None] & live[None, :]
            at = line[None, :] + c[:, None]
            chunk_lse = tl.load(Lse + at, mask=here, other=float("-inf"), cache_modifier=".cg")
            part = tl.load(
                Parts + (at * D)[:, :, None] + d[None, None, :], mask=here[:, :, None] & (d < D)[None, None, :],
                other=0.0, cache_modifier=".cg",
            )  # fmt: skip
            weight = tl.exp2(chunk_lse - peak[None, :])
            total += tl.sum(weight, 0)
            acc += tl.sum(part * weight[:, :, None], 0)
        acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        store_result(acc, Gate, Out, token, head, gate_row, cell, H, D, DP)
        # Safe for the next launch: its programs add to a counter only after `wait_for_earlier`, so they find this 0.
        # No program of this launch adds to it later, since all shares have arrived.
        tl.store(Counters + group, 0)


@triton.jit(
    do_not_specialize=[
        *("width", "offset", "num_columns", "num_pages", "num_positions", "eps", "scale", "cap", "gate_row")
    ],
    do_not_specialize_on_alignment=["Scales", "PageTable", "Base", "Count", "Starts"],
)
def attend_few_kernel(
    QKV, Cache, Scales, PageTable, Base, Count, Starts, Rotary, QNorm, KNorm, SinkLogits, Gate, Out, Parts, Lse,
    Counters,
    eps, scale, cap, width, offset, num_columns, num_pages, num_positions, gate_row,
    H: tl.constexpr, HKV: tl.constexpr, D1: tl.constexpr, P1: tl.constexpr, D2: tl.constexpr, P2: tl.constexpr,
    DV: tl.constexpr, PV: tl.constexpr, IN_KEYS: tl.constexpr, PAIRS: tl.constexpr, FROM: tl.constexpr,
    QHEADS: tl.constexpr, KHEADS: tl.constexpr, CAPPED: tl.constexpr,
    WIDE: tl.constexpr, TOKEN: tl.constexpr, PAGE: tl.constexpr,
    BT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SHARES: tl.constexpr, CHUNK: tl.constexpr,
    STAGES: tl.constexpr, REACH: tl.constexpr, SINKS: tl.constexpr, EARLY: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A program attends for a row, a key head, a block of queries and a share of the keys. Parts: float32 [rows *
    width * H, SHARES, DV]. Lse: float32 [rows * width * H, SHARES]. Counters: int32, one for each row, key head and
    block, zero before and after. EARLY: keys of earlier steps are prefetched (1) or read (2) before the wait; only for
    values of the same size. A token has WIDE elements in QKV and TOKEN in the cache."""
    let_next_start(CHAINED)
    G: tl.constexpr = H // HKV
    DK: tl.constexpr = D1 + D2
    row = tl.program_id(0)
    key_head = tl.program_id(1) % HKV
    block = tl.program_id(1) // HKV
    share = tl.program_id(2)
    d = tl.arange(0, PV)
    KNOWN: tl.constexpr = EARLY == 2 and Count is None and Starts is None
    if EARLY == 1 and CHAINED:
        prefetch_keys(
            Cache, PageTable, Base, row, key_head, share * BN, num_columns, num_pages, HKV, D1, P1, PAGE, BN
        )
    if EARLY == 2:
        # Earlier kernels may still run. The caller has promised that none of them writes these keys, bases and page
        # tables (`Rows.settled`). The row of this kernel in csrc/kernels/README.md says why that holds.
        base, old, old_k, old_v = read_old_keys(
            Cache, PageTable, Base, row, key_head, share * BN, num_columns, HKV, D1, P1, PAGE, BN
        )
    if KNOWN:
        begin_token, count, first = tokens_of(
            base, Count, Starts, PageTable, row, width, offset, num_columns, PAGE
        )
    wait_for_earlier(CHAINED)
    if EARLY < 2:
        base = tl.load(Base + row)
    if not KNOWN:
        begin_token, count, first = tokens_of(
            base, Count, Starts, PageTable, row, width, offset, num_columns, PAGE
        )
    length = tl.minimum(first + count, num_columns * PAGE)
    alive = tl.minimum(tl.cdiv(length, BN), SHARES)
    if (share < alive) & (block * BM < count * G):
        query = block * BM + tl.arange(0, BM)
        token = query // G
        head = key_head * G + query % G
        live = token < count
        row_qkv = QKV + begin_token * WIDE
        tokens = row_qkv + token * WIDE
        squares = 0.0
        if QHEADS > 1:
            squares = sum_all_squares(tokens, live, BM, QHEADS * DK)
        q, q2 = load_parts(
            tokens, head, QNorm, squares, Rotary, first + token, live, eps, num_positions, BM, D1, P1, D2, P2, PAIRS,
            FROM, QHEADS,
        )  # fmt: skip
        position = tl.where(live, tl.minimum(first + token, length - 1), -1)
        write_new_keys(
            Cache, Scales, PageTable, Rotary, KNorm, row_qkv, row, key_head, share, count, first, length,
            eps, num_columns, num_positions, H, HKV, D1, P1, D2, P2, DV, PV, IN_KEYS, PAIRS, FROM, KHEADS, WIDE, TOKEN,
            PAGE, BT, BN, SHARES,
        )  # fmt: skip
        m, total, acc = begin_softmax(SinkLogits, head, live & (share == 0), BM, PV)
        low = 0
        hidden = 0
        if REACH > 0:
            low = tl.maximum(tl.minimum(first + block * BM // G, length - 1) - REACH + 1, 0)
            hidden = hidden_keys(low, share * BN, SHARES * BN, BN, SINKS)
        begin = share * BN
        if EARLY == 2:
            m, total, acc = attend_first_tile(
                q, position, Cache, PageTable, row, key_head, begin, old, old_k, old_v, length, scale, cap, num_columns,
                m, total, acc, HKV, D1, P1, PAGE, BN, CAPPED,
            )  # fmt: skip
            begin += SHARES * BN
        m, total, acc = attend_share(
            q, q2, position, Cache, Scales, PageTable, row, key_head, begin, low, hidden, length, scale, cap,
            num_columns, m, total, acc, HKV, D1, P1, D2, P2, DV, PV, IN_KEYS, CAPPED, TOKEN, PAGE, BN, SHARES * BN,
            STAGES, REACH, SINKS,
        )  # fmt: skip
        acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        cell = live[:, None] & (d < DV)[None, :]
        if alive == 1:
            store_result(acc, Gate, Out, begin_token + token, head, gate_row, cell, H, DV, PV)
        elif SHARES > 1:
            group = row * tl.num_programs(1) + tl.program_id(1)
            query_line = (row.to(tl.int64) * width + token) * H + head
            join_shares(
                m, total, acc, query_line, live, cell, Gate, Out, Parts, Lse, Counters, group, begin_token + token,
                head, gate_row, share, alive, H, DV, PV, BM, SHARES, CHUNK,
            )  # fmt: skip


def attend_few(call: Call, num_rows: int, shares: int | None = None) -> None:
    """`attend` for the first `num_rows` rows, which have at most `FEW_TOKENS` new tokens."""
    pages, page, num_kv_heads, _ = call.keys.shape
    columns = call.page_table.shape[1]
    width = call.short_width if call.num_short else call.width
    size, dim = call.sizes[-2:]
    keys = keys_of_tile(call.row_bytes)
    shares = shares or choose_shares(num_kv_heads, columns * page, keys)
    lines = num_rows * width * call.num_heads
    groups = num_kv_heads * triton.cdiv(width * (call.num_heads // num_kv_heads), QUERIES)
    parts = lse = arrived = call.out
    if shares > 1:
        parts = torch.empty(lines, shares, size, dtype=torch.float32, device=call.out.device)
        lse = torch.empty(lines, shares, dtype=torch.float32, device=call.out.device)
        arrived = counters(call.out, num_rows * groups)
    attend_few_kernel[(num_rows, groups, shares)](
        call.qkv, call.cache, call.scales, call.page_table.contiguous(), call.base, call.count, call.starts,
        call.rotary, call.q_norm, call.k_norm, call.sink_logits, call.gate, call.out, parts, lse, arrived, call.eps,
        *call.score_scales, width, call.offset, columns, pages, call.num_positions, call.gate_row,
        call.num_heads, num_kv_heads, *call.sizes, call.values_in_keys, *call.head_constants, call.softcap > 0,
        call.qkv.stride(0), token_stride(call.keys), page, FEW_TOKENS, QUERIES, keys, shares,
        min(shares, max(1, JOINED // dim)), STAGES, call.reach, call.sinks, how_early(call), **chain_options(call.out),
        num_warps=8 if call.row_bytes >= 512 and call.qkv.element_size() == 4 else 4,
    )  # fmt: skip


def how_early(call: Call) -> int:
    """The value of EARLY for `attend_few_kernel`: 0 for no early access to keys, 1 for prefetching, 2 for reading."""
    if call.reach:  # the first tile depends on the new tokens' positions
        return 0
    if call.values_in_keys or call.keys.shape != call.values.shape or call.keys.dtype is torch.int8:
        return 0
    early = {"none": 0, "hinted": 1, "read": 2}[chosen().early_keys]
    # Keys that are read early wait in registers, and a tile of larger heads does not fit there. In a call with long
    # rows, those may write old keys of the short rows.
    may_read = call.settled and not call.num_short and call.keys.shape[3] <= MAX_IN_REGISTERS
    return early if may_read else min(early, 1)


@triton.jit(do_not_specialize=["num_tokens"])
def squares_kernel(
    QKV, Squares, num_tokens, WIDE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, BT: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Squares: float32 [num_tokens, 2], the sums of the squares of each token's QUERIES elements of queries, and of the
    KEYS elements of keys after them: for norms over several heads, of which `rotate_write_kernel` overwrites some while
    others are not read yet."""
    begin(CHAINED)
    token = tl.program_id(0).to(tl.int64) * BT + tl.arange(0, BT)
    live = token < num_tokens
    tokens = QKV + token * WIDE
    if tl.program_id(1) == 0:
        squares = sum_all_squares(tokens, live, BT, QUERIES)
    else:
        squares = sum_all_squares(tokens + QUERIES, live, BT, KEYS)
    tl.store(Squares + token * 2 + tl.program_id(1), squares, mask=live)


@triton.jit(
    do_not_specialize=["first_row", "num_rows", "width", "offset", "num_columns", "num_positions", "eps"],
    do_not_specialize_on_alignment=["Scales", "PageTable", "Base", "Count", "Starts"],
)
def rotate_write_kernel(
    QKV, Cache, Scales, PageTable, Base, Count, Starts, Rotary, QNorm, KNorm, Squares,
    eps, first_row, num_rows, width, offset, num_columns, num_positions,
    H: tl.constexpr, HKV: tl.constexpr, D1: tl.constexpr, P1: tl.constexpr, D2: tl.constexpr, P2: tl.constexpr,
    DV: tl.constexpr, PV: tl.constexpr, PAIRS: tl.constexpr, FROM: tl.constexpr, QHEADS: tl.constexpr,
    KHEADS: tl.constexpr, WIDE: tl.constexpr, TOKEN: tl.constexpr, PAGE: tl.constexpr, BT: tl.constexpr,
    ROWS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A program handles one head for a tile of a row's tokens. It rotates queries in place, and writes keys and values
    to the cache. Squares are those of `squares_kernel`."""
    begin(CHAINED)
    DK: tl.constexpr = D1 + D2
    row, number = tile_of(Starts, tl.program_id(0), first_row, num_rows, width, 1, BT, ROWS)
    head = tl.program_id(1)
    begin_token, count, first = tokens_of(
        tl.load(Base + row), Count, Starts, PageTable, row, width, offset, num_columns, PAGE
    )
    if number * BT >= count:
        return
    token = number * BT + tl.arange(0, BT)
    live = token < count
    position = first + token
    tokens = QKV + (begin_token + token) * WIDE
    squares = tl.zeros([BT], tl.float32)
    if head < H:
        if PAIRS > 0 or QNorm is not None:
            if QHEADS > 1:
                squares = tl.load(Squares + (begin_token + token) * 2, mask=live, other=0.0)
            q, q2 = load_parts(
                tokens, head, QNorm, squares, Rotary, position, live, eps, num_positions, BT, D1, P1, D2, P2, PAIRS,
                FROM, QHEADS,
            )  # fmt: skip
            store_parts((tokens + head * DK)[:, None], q, q2, live, None, token, D1, P1, D2, P2)
    else:
        column = position // PAGE
        page = tl.load(
            PageTable + row * num_columns + column, mask=live & (column < num_columns), other=0
        ).to(tl.int64)
        target = Cache + ((page * PAGE + position % PAGE) * TOKEN)[:, None]
        scale_at = (page * PAGE + position % PAGE) * (TOKEN // 2) + head - H
        if head < H + HKV:
            if KHEADS > 1:
                squares = tl.load(Squares + (begin_token + token) * 2 + 1, mask=live, other=0.0)
            k, k2 = load_parts(
                tokens + H * DK, head - H, KNorm, squares, Rotary, position, live, eps, num_positions, BT, D1, P1, D2,
                P2, PAIRS, FROM, KHEADS,
            )  # fmt: skip
            store_parts(target + (head - H) * DK, k, k2, page > 0, Scales, scale_at, D1, P1, D2, P2)
        else:
            place = (head - H - HKV) * DV
            v = load_heads((tokens + (H + HKV) * DK + place)[:, None], tl.arange(0, PV), live, DV, PV)
            store_parts(target + HKV * DK + place, v, v, page > 0, Scales, scale_at, DV, PV, 0, 0)


@triton.jit(
    do_not_specialize=["first_row", "num_rows", "width", "offset", "num_columns", "scale", "cap", "gate_row"],
    do_not_specialize_on_alignment=["Scales", "PageTable", "Base", "Count", "Starts"],
)
def attend_kernel(
    QKV, Cache, Scales, PageTable, Base, Count, Starts, SinkLogits, Gate, Out, scale, cap, first_row, num_rows, width,
    offset, num_columns, gate_row,
    H: tl.constexpr, HKV: tl.constexpr, D1: tl.constexpr, P1: tl.constexpr, D2: tl.constexpr, P2: tl.constexpr,
    DV: tl.constexpr, PV: tl.constexpr, IN_KEYS: tl.constexpr, CAPPED: tl.constexpr, WIDE: tl.constexpr,
    TOKEN: tl.constexpr, PAGE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
    REACH: tl.constexpr, SINKS: tl.constexpr, ROWS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """A program attends for a key head and a tile of a row's queries."""
    begin(CHAINED)
    G: tl.constexpr = H // HKV
    row, number = tile_of(Starts, tl.program_id(0), first_row, num_rows, width, G, BM, ROWS)
    key_head = tl.program_id(1)
    begin_token, count, first = tokens_of(
        tl.load(Base + row), Count, Starts, PageTable, row, width, offset, num_columns, PAGE
    )
    if number * BM >= count * G:
        return
    query = number * BM + tl.arange(0, BM)
    token = query // G
    head = key_head * G + query % G
    live = token < count
    source = QKV + ((begin_token + token) * WIDE + head * (D1 + D2))[:, None]
    q = load_heads(source, tl.arange(0, P1), live, D1, P1)
    q2 = q
    if D2 > 0:
        q2 = load_heads(source + D1, tl.arange(0, P2), live, D2, P2)
    position = tl.where(live, first + token, -1)
    length = tl.minimum(tl.max(position, 0) + 1, num_columns * PAGE)
    m, total, acc = begin_softmax(SinkLogits, head, live, BM, PV)
    low = 0
    hidden = 0
    if REACH > 0:
        low = tl.maximum(tl.minimum(first + number * BM // G, length - 1) - REACH + 1, 0)
        hidden = hidden_keys(low, 0, BN, BN, SINKS)
    m, total, acc = attend_share(
        q, q2, position, Cache, Scales, PageTable, row, key_head, 0, low, hidden, length, scale, cap, num_columns,
        m, total, acc, HKV, D1, P1, D2, P2, DV, PV, IN_KEYS, CAPPED, TOKEN, PAGE, BN, BN, STAGES, REACH, SINKS,
    )  # fmt: skip
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    cell = live[:, None] & (tl.arange(0, PV) < DV)[None, :]
    store_result(acc, Gate, Out, begin_token + token, head, gate_row, cell, H, DV, PV)


def attend_long(call: Call, first_row: int = 0) -> None:
    """`attend` for the rows from `first_row` on, which have any number of new tokens."""
    _, page, num_kv_heads, _ = call.keys.shape
    columns = call.page_table.shape[1]
    num_rows = call.page_table.shape[0] - first_row
    table = call.page_table.contiguous()
    group = call.num_heads // num_kv_heads
    most_rows = triton.next_power_of_2(num_rows) if call.starts is not None else 1
    chain = chain_options(call.out)
    squares = sum_squares_of_heads(call)
    tiles = num_tiles(call, num_rows, LONG_TOKENS, 1)
    rotate_write_kernel[(tiles, call.num_heads + num_kv_heads * (1 if call.values_in_keys else 2))](
        call.qkv, call.cache, call.scales, table, call.base, call.count, call.starts, call.rotary, call.q_norm,
        call.k_norm, squares,
        call.eps, first_row, num_rows, call.width, call.offset, columns, call.num_positions,
        call.num_heads, num_kv_heads, *call.sizes, *call.head_constants, call.qkv.stride(0), token_stride(call.keys),
        page, LONG_TOKENS, most_rows, **chain, num_warps=8 if call.row_bytes >= 512 else 4,
    )  # fmt: skip
    queries, keys = choose_block(call.row_bytes)
    attend_kernel[(num_tiles(call, num_rows, queries, group), num_kv_heads)](
        call.qkv, call.cache, call.scales, table, call.base, call.count, call.starts, call.sink_logits, call.gate,
        call.out,
        *call.score_scales, first_row, num_rows, call.width, call.offset, columns, call.gate_row,
        call.num_heads, num_kv_heads, *call.sizes, call.values_in_keys, call.softcap > 0, call.qkv.stride(0),
        token_stride(call.keys), page, queries, keys, LONG_STAGES, call.reach, call.sinks,
        most_rows, **chain, num_warps=LONG_WARPS,
    )  # fmt: skip


def sum_squares_of_heads(call: Call) -> Tensor | None:
    """Launch `squares_kernel` if a norm is over several heads. Returns its result."""
    _, _, query_heads, key_heads = call.head_constants
    if query_heads == key_heads == 1:
        return None
    num_tokens, (num_kv_heads, size) = call.qkv.shape[0], call.keys.shape[2:]
    squares = torch.empty(num_tokens, 2, dtype=torch.float32, device=call.qkv.device)
    squares_kernel[(triton.cdiv(num_tokens, LONG_TOKENS), 2)](
        call.qkv, squares, num_tokens, call.qkv.stride(0), call.num_heads * size, num_kv_heads * size, LONG_TOKENS,
        **chain_options(call.out),
    )  # fmt: skip
    return squares


def num_tiles(call: Call, num_rows: int, queries: int, group: int) -> int:
    """The number of tiles of `queries` queries, `group` of each token, for `num_rows` rows. With `starts` it is a limit
    for any lengths of the rows (`tile_of`)."""
    if call.starts is None:
        return num_rows * int(triton.cdiv(call.width * group, queries))
    return call.qkv.shape[0] * group // queries + num_rows


def choose_block(row_bytes: int) -> tuple[int, int]:
    """Numbers of queries and keys in a block that fits in 99 KiB of shared memory, for heads of `row_bytes` bytes."""
    return (64 if row_bytes <= 512 else 32, keys_of_tile(row_bytes))
