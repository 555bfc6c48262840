"""The attention ops on the CPU: torch's SDPA over gathered pages, one row at a time; few queries in float32 natively.

A row at a time costs what its own length costs, needs no padding, and keeps rows from touching each other:
what is in the pages of one, be it NaN, can't reach another.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from weft import _core

DECODE_WIDTH = 16

NATIVE_PAIRS = 1 << 15
"""Queries times keys of a row: a short prompt, for which SDPA and what it needs gathered take longer."""


def kv_plan(page_table: Tensor, positions: Tensor, table: Tensor, page_size: int) -> tuple[Tensor, Tensor]:
    """See `weft.ops.attention.kv_plan`."""
    page_table, positions = page_table.contiguous(), positions.contiguous()
    rows, width = positions.shape
    slots = positions.new_empty(rows * width)
    rotary = table.new_empty(rows * width, *table.shape[1:])
    _core.kv_plan_cpu(
        page_table.data_ptr(),
        positions.data_ptr(),
        table.data_ptr(),
        slots.data_ptr(),
        rotary.data_ptr(),
        rows,
        width,
        page_size,
        page_table.shape[1],
        table.shape[0],
        table.stride(0),
    )
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
    """See `weft.ops.attention.rotate_write_`."""
    num_kv_heads, head_dim = cache.shape[3:]
    count, width = qkv.shape
    if qkv.dtype == torch.float32 and q_norm is None:
        _core.rotate_write_cpu(
            qkv.data_ptr(),
            cache.data_ptr(),
            slots.data_ptr(),
            rotary.data_ptr(),
            count,
            num_heads,
            num_kv_heads,
            head_dim,
        )
        return
    pairs = qkv.view(count, -1, head_dim // 2, 2).narrow(1, 0, num_heads + num_kv_heads)
    if q_norm is not None and k_norm is not None:
        rotated = pairs.flatten(2)
        for part, weight in zip(rotated.split((num_heads, num_kv_heads), 1), (q_norm, k_norm), strict=True):
            part.copy_(F.rms_norm(part, (head_dim,), weight, eps))
    turn = torch.view_as_complex(rotary).unsqueeze(1)
    if qkv.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(turn)
    else:
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()).mul_(turn)))
    written = 2 * num_kv_heads * head_dim
    cache.view(-1, written).index_copy_(0, slots, qkv.narrow(1, width - written, written))


def paged_attention(q: Tensor, cache: Tensor, page_table: Tensor, positions: Tensor, scale: float) -> Tensor:
    """See `weft.ops.attention.paged_attention`."""
    if q.dtype == torch.float32 and q.shape[1] <= DECODE_WIDTH:
        return _attend_native(q, cache, page_table.contiguous(), positions.contiguous(), scale)
    capacity = page_table.shape[1] * cache.shape[1]
    lengths = [min(last + 1, capacity) for last in positions.select(1, -1).tolist()]
    if q.dtype == torch.float32 and q.shape[1] * max(lengths) <= NATIVE_PAIRS:
        return _attend_native(q, cache, page_table.contiguous(), positions.contiguous(), scale)
    rows = zip(page_table.unbind(0), lengths, strict=True)
    keys_values = [_gather(cache, table, length) for table, length in rows]
    if q.shape[1] <= DECODE_WIDTH:
        return _decode_rows(q, keys_values, lengths, scale)
    pairs = zip(q.unbind(0), keys_values, strict=True)
    return torch.stack([_prefill_row(row, keys, values, scale) for row, (keys, values) in pairs])


def _attend_native(q: Tensor, cache: Tensor, page_table: Tensor, positions: Tensor, scale: float) -> Tensor:
    """Few queries in float32, or few keys: weft's own loop over the pages, which gathers nothing."""
    rows, width, heads, head_dim = q.shape
    out = torch.empty(rows, width, heads, head_dim)
    _core.paged_attention_cpu(
        q.data_ptr(),
        out.data_ptr(),
        cache.data_ptr(),
        page_table.data_ptr(),
        positions.data_ptr(),
        rows,
        width,
        heads,
        cache.shape[3],
        head_dim,
        cache.shape[1],
        page_table.shape[1],
        q.stride(0),
        q.stride(1),
        scale,
        torch.get_num_threads(),
    )
    return out


def _gather(cache: Tensor, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values [1, Hkv, length, D] of one row: its own entries, not what else its pages hold."""
    _, page_size, _, num_kv_heads, head_dim = cache.shape
    count = -(-length // page_size)
    pages = cache.index_select(0, table.narrow(0, 0, count))
    entries = pages.view(1, count * page_size, 2, num_kv_heads, head_dim).narrow(1, 0, length)
    keys, values = entries.permute(2, 0, 3, 1, 4).unbind(0)
    return keys, values


def _decode_rows(
    q: Tensor, keys_values: list[tuple[Tensor, Tensor]], lengths: list[int], scale: float
) -> Tensor:
    """Few queries: the query heads that share a key head become more queries of that head."""
    batch, width, num_heads, head_dim = q.shape
    num_kv_heads = keys_values[0][0].shape[1]
    group = num_heads // num_kv_heads
    packed = q.view(batch, width, num_kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
    rows = packed.reshape(batch, 1, num_kv_heads, group * width, head_dim).unbind(0)
    out = []
    for row, (keys, values), length in zip(rows, keys_values, lengths, strict=True):
        mask = _tail_mask(group, width, length, q.dtype) if width > 1 else None
        out.append(F.scaled_dot_product_attention(row, keys, values, attn_mask=mask, scale=scale))
    stacked = out[0] if batch == 1 else torch.cat(out)
    unpacked = stacked.view(batch, num_kv_heads, group, width, head_dim).permute(0, 3, 1, 2, 4)
    return unpacked.contiguous().view(batch, width, num_heads, head_dim)


def _prefill_row(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Many queries of one row, [T, H, D] -> [T, H, D]."""
    width, length = q.shape[0], keys.shape[2]
    is_whole = width == length
    mask = None if is_whole else torch.ones(width, length, dtype=torch.bool).tril_(length - width)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=mask,
        is_causal=is_whole,
        scale=scale,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1)


_STRIPS: dict[tuple[int, int, torch.dtype], Tensor] = {}


def _tail_mask(group: int, width: int, length: int, dtype: torch.dtype) -> Tensor:
    """[group * width, length] to add to scores: query t sees all but the last width - 1 - t keys.

    A constant: the end of a long strip, made once, of zeros and a triangle.
    """
    key = (group, width, dtype)
    strip = _STRIPS.get(key)
    if strip is None or strip.shape[1] < length:
        size = max(1024, 1 << length.bit_length())
        strip = torch.full((width, size), -math.inf, dtype=dtype).triu_(size - width + 1).repeat(group, 1)
        _STRIPS[key] = strip
    return strip.narrow(1, strip.shape[1] - length, length)
