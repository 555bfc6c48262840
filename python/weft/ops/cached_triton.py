"""Numbers of cached keys and values in Triton, from codes and to codes, as `weft.ops.cached` describes them."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def from_float8(codes):
    """The numbers of float8 `codes`, in float32. A float8 is 256 times the float16 with the same bits, but for NaN."""
    magnitude = (codes & 0x7F).to(tl.int16)
    bits = (magnitude << 7) | tl.where(magnitude == 0x7F, 0x7E00, 0).to(tl.int16)
    numbers = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return tl.where(codes >= 128, -numbers, numbers)


@triton.jit
def to_float8(numbers):
    """Numbers rounded to float8, as `narrow` in csrc/kernels/layer/cached.h."""
    bits = numbers.to(tl.float32).to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    subnormal = (magnitude.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    normal = (magnitude - 0x3C000000 + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    code = tl.where(magnitude < 0x3C800000, subnormal, normal)
    code = tl.where(magnitude < 0x43E00000, code, tl.where(magnitude > 0x7F800000, 0x7F, 0x7E))
    return (code | tl.where(bits < 0, 0x80, 0)).to(tl.uint8)


@triton.jit
def from_cache(codes, like):
    """`codes` [R, DP] of a cache as numbers in the dtype of `like`, exactly. The scales of int8 are not applied."""
    if codes.dtype == tl.uint8:
        heads = from_float8(codes).to(like.dtype)
    elif codes.dtype == tl.int8:
        heads = codes.to(tl.float32).to(like.dtype)
    else:
        heads = codes
    return heads


@triton.jit
def load_scales(Scales, at, live):
    """The scales of int8 at `at` [R], 0 for rows that are not `live`; 1 without scales."""
    if Scales is not None:
        scales = tl.load(Scales + at, mask=live, other=0.0).to(tl.float32)
    else:
        scales = 1.0
    return scales


@triton.jit
def largest_bits(heads):
    """The bits of the largest magnitude of each row of `heads` [R, DP] in float32, as integers in the same order."""
    return tl.max(heads.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)


@triton.jit
def scale_of(largest):
    """The int8 scale of rows with the magnitudes `largest` (`largest_bits`), rounded up, or NaN, and its inverse."""
    step = (largest.to(tl.float32, bitcast=True) * (1.0 / 127.0)).to(tl.int32, bitcast=True)
    bits = tl.where(largest < 0x7F800000, ((step + 0xFFFF) >> 16) << 16, 0x7FC00000)
    scale = bits.to(tl.float32, bitcast=True)
    is_usable = (largest < 0x7F800000) & (scale > 7.888609052210118e-31)
    return scale, tl.where(is_usable, 1.0 / tl.where(is_usable, scale, 1.0), 0.0)


@triton.jit
def to_int8(heads, factor):
    """The int8 codes of `heads` [R, DP], whose scales have the inverses `factor` [R]."""
    numbers = heads.to(tl.float32) * factor[:, None]
    numbers = tl.where(factor[:, None] == 0.0, 0.0, numbers)
    whole = (numbers + 12582912.0) - 12582912.0  # to nearest, ties to even
    return tl.minimum(tl.maximum(whole, -127.0), 127.0).to(tl.int8)
