"""Caches in other dtypes than float32, by torch's conversions."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.models.memory import Pages
from weft.ops.cached import SCALE, first_scale


def narrowed(pages: Pages, memory: Tensor, dtype: torch.dtype) -> Tensor:
    """The cache `memory` [..., width] of floats in `dtype`, [..., size_in(dtype)]."""
    memory = memory.float()
    if dtype is not torch.int8:
        limit = torch.finfo(dtype).max
        return (memory.clamp(-limit, limit) if dtype.itemsize == 1 else memory).to(dtype)
    codes, scales = zip(*(quantized(part) for part in _heads(pages, memory)), strict=True)
    narrow = torch.zeros(*memory.shape[:-1], pages.size_in(dtype), dtype=dtype)
    narrow[..., : pages.width] = torch.cat([each.flatten(-2) for each in codes], -1)
    _scales(pages, narrow)[:] = torch.cat(scales, -1)
    return narrow


def widened(pages: Pages, memory: Tensor) -> Tensor:
    """The numbers of a cache [..., width], in float32."""
    numbers = memory[..., : pages.width].float()
    if memory.dtype is not torch.int8:
        return numbers
    scales = _scales(pages, memory).float().split(pages.num_heads, -1)
    parts = zip(_heads(pages, numbers), scales, strict=True)
    return torch.cat([(heads * scale[..., None]).flatten(-2) for heads, scale in parts], -1)


def quantized(heads: Tensor) -> tuple[Tensor, Tensor]:
    """The int8 codes and the scales of `heads` [..., H, D]. A scale is NaN if a number is NaN or infinite."""
    largest = heads.abs().amax(-1)
    bits = (largest * (1 / torch.tensor(127.0))).view(torch.int32)
    scale = ((bits + 0xFFFF) >> 16).short().view(SCALE)  # rounded up
    factor = torch.where(scale > 2.0**-100, 1 / scale.float(), 0.0)
    codes = (heads * factor[..., None]).round().clamp(-127, 127)
    is_finite = largest.isfinite()
    return codes.where(is_finite[..., None], 0.0).to(torch.int8), scale.where(is_finite, torch.nan)


def _heads(pages: Pages, numbers: Tensor) -> list[Tensor]:
    """The keys [..., H, Dk] and the values [..., H, Dv] among the numbers of tokens."""
    count = pages.num_heads
    parts = numbers.split((count * pages.key_size, pages.width - count * pages.key_size), -1)
    return [part.unflatten(-1, (count, -1)) for part in parts if part.shape[-1]]


def _scales(pages: Pages, memory: Tensor) -> Tensor:
    return memory.view(SCALE)[..., first_scale(pages.width) // SCALE.itemsize :]
