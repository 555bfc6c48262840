"""What both ways of attention on CUDA are made of."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Call:
    """The arguments of `weft.ops.attention.attend`, as its operation has them."""

    qkv: Tensor
    cache: Tensor
    page_table: Tensor
    base: Tensor
    count: Tensor | None
    starts: Tensor | None
    width: int
    offset: int
    settled: bool
    rotary: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float
    num_heads: int
    scale: float
    window: int
    sinks: int
    out: Tensor

    @property
    def reach(self) -> int:
        """How far back a query sees; 0 for no limit."""
        return self.window - self.sinks


def padded(head_dim: int) -> int:
    """The size of a head in a kernel."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def keys_of_tile(row_bytes: int) -> int:
    """Keys that a tile holds, for heads of `row_bytes`."""
    return 64 if row_bytes <= 256 else 32 if row_bytes <= 512 else 16


@triton.jit
def tokens_of(base, Count, Starts, row, width, offset):
    """Of a row: its first token in the call, how many it has, and the position of the first."""
    first = base
    if Count is not None:
        first += tl.load(Count + row)
    if Starts is not None:
        mine = tl.load(Starts + row)
        count = (tl.load(Starts + row + 1) - mine).to(tl.int32)
    else:
        mine = row.to(tl.int64) * width
        count = width
    return mine, count, (first + offset).to(tl.int32)


@triton.jit
def load_heads(at, d, live, D: tl.constexpr, DP: tl.constexpr):
    """Rows [R, DP] of heads from `at` [R, 1]; zeros where not `live` [R] and beyond D."""
    if D == DP:
        heads = tl.load(at + d[None, :], mask=live[:, None], other=0.0)
    else:
        heads = tl.load(at + d[None, :], mask=live[:, None] & (d < D)[None, :], other=0.0)
    return heads


@triton.jit
def turn(
    heads, Norm, Rotary, positions, live, d, eps, num_positions, R: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """`heads` [R, DP] under their norm, if there is one, and rotated: neighbouring pairs, by (cos, sin) of
    `positions`."""
    f = heads.to(tl.float32)
    if Norm is not None:
        scale = tl.rsqrt(tl.sum(f * f, 1) / D + eps)
        weight = tl.load(Norm + d, mask=d < D, other=0.0).to(tl.float32)
        f = f * scale[:, None] * weight[None, :]
    line = tl.minimum(positions, num_positions - 1)
    angles = load_heads(Rotary + line[:, None] * D, d, live, D, DP)
    even, odd = tl.split(tl.reshape(f, (R, DP // 2, 2)))
    cos, sin = tl.split(tl.reshape(angles, (R, DP // 2, 2)))
    both = tl.join(even * cos - odd * sin, even * sin + odd * cos)
    return tl.reshape(both, (R, DP)).to(heads.dtype)


@triton.jit
def hidden_keys(low, begin, STEP: tl.constexpr, BN: tl.constexpr, SINKS: tl.constexpr):
    """How many keys are skipped by who takes tiles at `begin`, `begin` + STEP, ..., a multiple of STEP, where none is
    seen from the tiles of sinks to `low`."""
    after_sinks = tl.cdiv(tl.maximum(tl.cdiv(SINKS, BN) * BN - begin, 0), STEP)
    after_hidden = tl.cdiv(tl.maximum(low // BN * BN - begin, 0), STEP)
    return tl.maximum(after_hidden - after_sinks, 0) * STEP


@triton.jit
def skip_hidden(start, hidden, BN: tl.constexpr, SINKS: tl.constexpr):
    """The tile that comes at `start` where `hidden` keys are skipped after those of sinks."""
    return start + tl.where(start >= tl.cdiv(SINKS, BN) * BN, hidden, 0)


@triton.jit
def attend_tile(q, k, v, seen, scale, m, total, acc):
    """Take a tile of keys `k` and values `v` into the running maximum, sum and weighted values of queries `q`; `seen`
    says which keys each query sees."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    score = tl.where(seen, score, float("-inf"))
    top = tl.maximum(m, tl.max(score, 1))
    safe = tl.where(top == float("-inf"), 0.0, top)
    p = tl.exp2(score - safe[:, None])
    fade = tl.exp2(m - safe)
    total = total * fade + tl.sum(p, 1)
    acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return top, total, acc
