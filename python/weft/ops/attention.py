"""Paged attention: where tokens go, rotation and writing, and attending. Each op runs on the CPU and on CUDA.

Shapes: B rows, T new tokens per row, N = B * T, H query heads, Hkv key/value heads, D head size, P pages per
row. One layer's cache is [pages, page_size, 2, Hkv, D]: a token's keys, then its values. Page 0 belongs to no request:
positions beyond a row's page table land there. `positions` [B, T] ascend by one within a row; the query at
position p sees keys 0..p.

Lengths are read on the device: these ops are device code, and inside them is the only place where the CPU
looks.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from weft.ops import attention_cpu
from weft.ops.lazy_triton import triton_kernels
from weft.ops.library import device_of, register


def kv_plan(page_table: Tensor, positions: Tensor, table: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """Once per forward: where every token's key and value go, and its rotation.

    `page_table` [B, P] int32, `positions` [B, T] int64, `table` [max_positions, D/2, 2] float32 (cos, sin).
    Returns slots [N] int64, rows of a cache seen as [pages * page_size, 2, Hkv, D], and rotary [N, D/2, 2].
    """
    slots, rotary = _KV_PLAN(page_table, positions, table, page_size)
    return slots, rotary


def rotate_write_(
    qkv: Tensor,
    cache: Tensor,
    slots: Tensor,
    rotary: Tensor,
    num_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Normalise (if weights [D] are given) and rotate the queries of `qkv` [N, (H + 2 Hkv) * D] in place;
    write rotated keys and the values into `cache`. Rotation turns neighbouring pairs (0, 1), (2, 3), … of a
    head. The keys within `qkv` are undefined afterwards.
    """
    _ROTATE_WRITE(qkv, cache, slots, rotary, num_heads, q_norm, k_norm, eps)


def paged_attention(q: Tensor, cache: Tensor, page_table: Tensor, positions: Tensor, scale: float) -> Tensor:
    """Causal attention of `q` [B, T, H, D] (D contiguous) over a layer's `cache`: [B, T, H, D]."""
    out: Tensor = _PAGED_ATTENTION(q, cache, page_table, positions, scale)
    return out


def _kv_plan_cuda(*args: Any) -> tuple[Tensor, Tensor]:
    with device_of(args[1]):
        plan: tuple[Tensor, Tensor] = triton_kernels("attention_triton").kv_plan(*args)
    return plan


def _rotate_write_cuda(*args: Any) -> None:
    with device_of(args[0]):
        triton_kernels("attention_triton").rotate_write_(*args)


def _paged_attention_cuda(*args: Any) -> Tensor:
    with device_of(args[0]):
        out: Tensor = triton_kernels("attention_triton").paged_attention(*args)
    return out


def _kv_plan_fake(
    page_table: Tensor, positions: Tensor, table: Tensor, page_size: int
) -> tuple[Tensor, Tensor]:
    count = positions.numel()
    return positions.new_empty(count), table.new_empty(count, *table.shape[1:])


def _rotate_write_fake(*args: object) -> None:
    return None


def _paged_attention_fake(
    q: Tensor, cache: Tensor, page_table: Tensor, positions: Tensor, scale: float
) -> Tensor:
    return q.new_empty(tuple(q.shape))


_KV_PLAN = register(
    "kv_plan(Tensor page_table, Tensor positions, Tensor table, int page_size) -> (Tensor, Tensor)",
    cpu=attention_cpu.kv_plan,
    cuda=_kv_plan_cuda,
    fake=_kv_plan_fake,
)
_ROTATE_WRITE = register(
    "rotate_write_(Tensor(a!) qkv, Tensor(b!) cache, Tensor slots, Tensor rotary, int num_heads, "
    "Tensor? q_norm, Tensor? k_norm, float eps) -> ()",
    cpu=attention_cpu.rotate_write_,
    cuda=_rotate_write_cuda,
    fake=_rotate_write_fake,
)
_PAGED_ATTENTION = register(
    "paged_attention(Tensor q, Tensor cache, Tensor page_table, Tensor positions, float scale) -> Tensor",
    cpu=attention_cpu.paged_attention,
    cuda=_paged_attention_cuda,
    fake=_paged_attention_fake,
)
