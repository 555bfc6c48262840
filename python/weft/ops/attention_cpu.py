"""The attention ops on the CPU: torch's SDPA over gathered pages, one row at a time.

A row at a time costs what its own length costs, needs no padding, and keeps rows from touching each other:
what is in the pages of one, be it NaN, can't reach another.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

DECODE_WIDTH = 16


def kv_plan(
    page_table: Tensor, positions: Tensor, table: Tensor, num_pages: int, page_size: int
) -> tuple[Tensor, Tensor]:
    page = positions // page_size
    entry = page_table.gather(1, page.clamp(max=page_table.shape[1] - 1))
    slot = (entry * (page < page_table.shape[1])).mul_(page_size) + positions % page_size
    slots = torch.stack((slot.view(-1), slot.view(-1) + num_pages * page_size), 1)
    return slots, table.index_select(0, positions.reshape(-1).clamp(max=table.shape[0] - 1))


def rotate_write_(
    qkv: Tensor,
    cache: Tensor,
    slots: Tensor,
    rotary: Tensor,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
    num_heads: int,
) -> None:
    num_kv_heads, head_dim = cache.shape[3:]
    rotated = qkv.narrow(1, 0, num_heads + num_kv_heads)
    if q_norm is not None and k_norm is not None:
        for part, weight in zip(rotated.split((num_heads, num_kv_heads), 1), (q_norm, k_norm), strict=True):
            part.copy_(F.rms_norm(part, (head_dim,), weight, eps))
    turn = torch.view_as_complex(rotary).unsqueeze(1)
    if qkv.dtype == torch.float32:
        torch.view_as_complex(rotated.unflatten(-1, (-1, 2))).mul_(turn)
    else:
        pairs = torch.view_as_complex(rotated.float().unflatten(-1, (-1, 2)))
        rotated.copy_(torch.view_as_real(pairs.mul_(turn)).flatten(-2))
    new = qkv.narrow(1, num_heads, 2 * num_kv_heads).reshape(-1, num_kv_heads, head_dim)
    cache.view(-1, num_kv_heads, head_dim).index_copy_(0, slots.view(-1), new)


def paged_attention(q: Tensor, cache: Tensor, page_table: Tensor, positions: Tensor, scale: float) -> Tensor:
    width = q.shape[1]
    lengths = (positions.select(1, -1) + 1).clamp_(max=page_table.shape[1] * cache.shape[2]).tolist()
    keys_values = [_gather(cache, table, n) for table, n in zip(page_table.unbind(0), lengths, strict=True)]
    if width > DECODE_WIDTH:
        rows = [_prefill_row(*row, scale) for row in zip(q.unbind(0), keys_values, strict=True)]
        return torch.stack(rows)
    return _decode_rows(q, keys_values, lengths, scale)


def _gather(cache: Tensor, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values [1, Hkv, length, D] of one row. Only its own entries: what else the pages hold can't
    leak.
    """
    page_size, num_kv_heads, head_dim = cache.shape[2:]
    count = -(-length // page_size)
    pages = cache.index_select(1, table.narrow(0, 0, count)).view(
        2, 1, count * page_size, num_kv_heads, head_dim
    )
    keys, values = pages.narrow(2, 0, length).transpose(2, 3).unbind(0)
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


def _prefill_row(q: Tensor, keys_values: tuple[Tensor, Tensor], scale: float) -> Tensor:
    """Many queries of one row, [T, H, D] -> [T, H, D]."""
    keys, values = keys_values
    width, length = q.shape[0], keys.shape[2]
    whole = width == length
    mask = None if whole else torch.ones(width, length, dtype=torch.bool).tril_(length - width)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1).unsqueeze(0),
        keys,
        values,
        attn_mask=mask,
        is_causal=whole,
        scale=scale,
        enable_gqa=True,
    )
    return out.squeeze(0).transpose(0, 1)


_strips: dict[tuple[int, int, torch.dtype], Tensor] = {}


def _tail_mask(group: int, width: int, length: int, dtype: torch.dtype) -> Tensor:
    """[group * width, length] to add to scores: query t sees all but the last width - 1 - t keys.

    A constant: the end of a long strip, made once, of zeros and a triangle.
    """
    key = (group, width, dtype)
    strip = _strips.get(key)
    if strip is None or strip.shape[1] < length:
        cap = max(1024, 1 << length.bit_length())
        strip = torch.full((width, cap), -math.inf, dtype=dtype).triu_(cap - width + 1).repeat(group, 1)
        _strips[key] = strip
    return strip.narrow(1, strip.shape[1] - length, length)
