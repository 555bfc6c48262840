"""The dtypes of cached keys and values, and how a token of the cache is laid out.

A token has its keys, then its values, in float32, float16, bfloat16, float8 (E4M3, without scales) or int8. Numbers are
rounded to nearest when they are written, and widened exactly when they are read. In float8, numbers beyond 448 become
448.

In int8 a head's key has one scale, and so has its value: number = code * scale. Scales are bfloat16, so that products
of codes and scales are exact in float32. They follow the values of their token, at an even byte: those of the keys,
then those of the values. So a page is a range of bytes in every dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

CACHED = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
"""The dtypes of caches by the names that users give, in the order of `CachedType` in csrc/kernels/layer/cached.h."""

CODES = {dtype: code for code, dtype in enumerate(CACHED.values())}
"""The numbers of the dtypes in C++."""

SCALE = torch.bfloat16
"""The dtype of the scales of int8."""


def first_scale(num_numbers: int) -> int:
    """The byte of the first scale of a token with `num_numbers` numbers in int8."""
    return num_numbers + num_numbers % SCALE.itemsize


def token_size(num_numbers: int, num_scales: int, dtype: torch.dtype) -> int:
    """The elements of a cache of `dtype` that a token of `num_numbers` numbers takes. With int8, it has `num_scales`
    scales."""
    return first_scale(num_numbers) + num_scales * SCALE.itemsize if dtype is torch.int8 else num_numbers


def as_bytes(cache: Tensor) -> Tensor:
    """A view of a cache of float8 as bytes, since torch has few operations on it; other caches as they are."""
    return cache.view(torch.uint8) if cache.dtype is torch.float8_e4m3fn else cache
