"""The functions of `weft.ops.activation` in Triton, for other kernels."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from weft.ops.activation import Function

NONE: tl.constexpr = tl.constexpr(int(Function.NONE))
SILU: tl.constexpr = tl.constexpr(int(Function.SILU))
GELU: tl.constexpr = tl.constexpr(int(Function.GELU))
GELU_TANH: tl.constexpr = tl.constexpr(int(Function.GELU_TANH))
RELU: tl.constexpr = tl.constexpr(int(Function.RELU))


@triton.jit
def activated(x, slope, FUNCTION: tl.constexpr):
    """As in `weft.ops.activation.Activation`. Comparisons keep NaN."""
    if FUNCTION == NONE:
        result = x
    elif FUNCTION == SILU:
        result = x / (1.0 + tl.exp(-slope * x))
    elif FUNCTION == GELU:
        result = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif FUNCTION == GELU_TANH:
        result = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif FUNCTION == RELU:
        result = tl.where(x < 0, 0.0, x)
    else:
        result = tl.where(x < 0, 0.0, x * x)
    return result


@triton.jit
def gated(gate, up, slope, limit, shift, FUNCTION: tl.constexpr):
    """An activation with gates, as in `weft.ops.activation.Activation`. Comparisons keep NaN."""
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    return activated(gate, slope, FUNCTION) * (up + shift)


@triton.jit
def tanh(x):
    """tanh to some units in the last place."""
    square = x * x
    # The Taylor series, for small |x|, where the fraction below would lose digits.
    series = square * -0.008863236 + 0.021869488
    series = series * square - 0.053968254
    series = series * square + 0.13333334
    series = series * square - 0.33333334
    fade = tl.exp2(tl.abs(x) * -2.885390081777927)
    fraction = (1.0 - fade) / (1.0 + fade)
    return tl.where(square < 0.09, x + x * square * series, tl.where(x < 0, -fraction, fraction))


@triton.jit
def scaled_capped(value, scale, softcap, SCALED: tl.constexpr, CAPPED: tl.constexpr):
    """`value` * `scale`, then softcap * tanh(y / softcap). Each is left out if its constant is false."""
    if SCALED:
        value = value * scale
    if CAPPED:
        value = softcap * tanh(value / softcap)
    return value
