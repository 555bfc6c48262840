"""Quantised weights in Triton, in the layout of `weft.ops.device_blocks`: functions with which other kernels read them,
and a kernel that widens them.

A tile has the codes of one group of inputs. Codes are small integers, or FP8's numbers; float16 and bfloat16 hold all
of these. So products multiply inputs by codes, and then the sums by scales in float32. They round no weight.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.ops.device_blocks import SUPER_BLOCK, Codes, DeviceBlocks, Stored
from weft.ops.triton_launch import begin, chain_options

DENSE: tl.constexpr = tl.constexpr(0)
"""The number, in place of one of `Codes`, for weights that are not quantised."""
SIGNED_NIBBLES: tl.constexpr = tl.constexpr(int(Codes.SIGNED_NIBBLES))
IQ4_NL: tl.constexpr = tl.constexpr(int(Codes.IQ4_NL))
E2M1: tl.constexpr = tl.constexpr(int(Codes.E2M1))
INT8: tl.constexpr = tl.constexpr(int(Codes.INT8))
E4M3: tl.constexpr = tl.constexpr(int(Codes.E4M3))

ZEROS: tl.constexpr = tl.constexpr(1)
"""A group has an integer that is subtracted from its codes."""
MINIMA: tl.constexpr = tl.constexpr(2)
"""A group has a number that is added to the scaled codes."""

OUTPUTS, INPUTS = 32, 256
"""The outputs and inputs that a program widens."""


def _words(book: Sequence[int]) -> tl.constexpr:
    """16 int8, 4 in each of 4 int32."""
    words = (
        int.from_bytes(bytes(n & 255 for n in book[i : i + 4]), "little", signed=True)
        for i in range(0, 16, 4)
    )
    return tl.constexpr(tuple(words))


IQ4_NL_BOOK: tl.constexpr = _words((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113))
E2M1_BOOK: tl.constexpr = _words((0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12))
"""The numbers of MXFP4, doubled."""


class Constants(NamedTuple):
    """For what a kernel is compiled: `Codes` or DENSE, the inputs of a group, 2 if a byte has two codes, else 1, and
    the kind of lows."""

    codes: int
    group: int
    halves: int
    lows: int


def block_constants(weight: Stored) -> Constants:
    """The constants of a weight for which a kernel is compiled."""
    if isinstance(weight, Tensor):
        return Constants(0, 1, 1, 0)
    layout, lows = weight.layout, 0
    if layout.lows is not None:
        lows = 1 if layout.lows is torch.uint8 and not layout.supers else 2
    return Constants(int(layout.codes), layout.group, 2 if layout.codes.is_half else 1, lows)


def arguments_of(weight: Stored) -> tuple[tuple[Tensor | None, ...], Constants]:
    """A weight as a kernel's arguments: its numbers or codes, scales, lows and supers; and its constants."""
    if isinstance(weight, Tensor):
        return (weight, None, None, None), block_constants(weight)
    return (weight.codes, weight.scales, weight.lows, weight.supers), block_constants(weight)


def element_bytes(weight: Stored) -> float:
    """The bytes of a number, or of a code."""
    if isinstance(weight, Tensor):
        return weight.element_size()
    return 0.5 if weight.layout.codes.is_half else 1


@triton.jit
def load_codes(
    Codes, place, group, K: tl.constexpr, GROUP: tl.constexpr, HALVES: tl.constexpr, EVEN: tl.constexpr
):  # fmt: skip
    """The codes of a group at a place of each output (`place_of`): uint8 [BN, GROUP / HALVES]. Without EVEN the group
    may come after the last; it has codes 0."""
    WIDTH: tl.constexpr = GROUP // HALVES
    source = Codes + place[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    if EVEN:
        codes = tl.load(source)
    else:
        codes = tl.load(source, mask=((place >= 0) & (group * GROUP < K))[:, None], other=0)
    return codes


@triton.jit
def place_of(n, group, expert, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr):
    """The place of a group of inputs and outputs `n` in a tensor [M, groups, outputs], int64."""
    return n.to(tl.int64) + (expert * ((K + GROUP - 1) // GROUP) + group) * N


@triton.jit
def from_book(code, BOOK: tl.constexpr):
    """Number `code` of 16."""
    low = tl.where(code < 4, BOOK[0], BOOK[1])
    high = tl.where(code < 12, BOOK[2], BOOK[3])
    return (tl.where(code < 8, low, high) >> (code & 3) * 8).to(tl.int8)


@triton.jit
def decoded(codes, low, HALF: tl.constexpr, CODES: tl.constexpr, LOWS: tl.constexpr, dtype: tl.constexpr):
    """The numbers in the low (HALF 0) or high halves of the codes of a group, before they are scaled."""
    if CODES == INT8:
        number = codes.to(tl.int8, bitcast=True).to(dtype)
    elif CODES == E4M3:
        # The same bits are 2**-8 times as much in float16, which also has FP8's numbers without a leading 1.
        bits = (codes & 0x80).to(tl.int16) << 8 | (codes & 0x7F).to(tl.int16) << 7
        number = bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        number = tl.where((codes & 0x7F) == 0x7F, float("nan"), number).to(dtype)
    else:
        code = (codes >> 4 if HALF == 1 else codes & 15).to(tl.int8)
        if CODES == IQ4_NL:
            code = from_book(code.to(tl.int32), IQ4_NL_BOOK)
        elif CODES == E2M1:
            code = from_book(code.to(tl.int32), E2M1_BOOK)
        elif CODES == SIGNED_NIBBLES:
            code -= 8
        elif LOWS == ZEROS:
            code -= low[:, None]
        number = code.to(dtype)
    return number


@triton.jit
def add_product(sums, x_sums, x, codes, low, HALF: tl.constexpr, CODES: tl.constexpr, LOWS: tl.constexpr):
    """`sums` [BM, BN] plus the products of inputs [BM, inputs] with the codes in one half, and `x_sums` [BM] plus the
    sums of these inputs, if a minimum is to be added to each number.

    With rows first, and fewer than 64 of them, Triton uses the tensor core's instructions whose sums are in registers.
    Those for 64 rows of weights would wait for each group's sums, and since sm_100 keep them in a memory of their own,
    which is full after some groups."""
    numbers = decoded(codes, low, HALF, CODES, LOWS, x.dtype)
    sums = tl.dot(x, tl.trans(numbers), sums, input_precision="ieee")
    if LOWS == MINIMA:
        x_sums += tl.sum(x.to(tl.float32), 1)
    return sums, x_sums


@triton.jit
def add_scaled(acc, sums, x_sums, scale, low, LOWS: tl.constexpr):
    """`acc` [BM, BN] plus the sums of a group with its scales and minima."""
    acc += sums * scale[None, :]
    if LOWS == MINIMA:
        acc += x_sums[:, None] * low[None, :]
    return acc


@triton.jit
def load_some(Source, place, inside, EVEN: tl.constexpr):
    if EVEN:
        value = tl.load(Source + place)
    else:
        value = tl.load(Source + place, mask=inside, other=0)
    return value


@triton.jit
def load_scales(
    Scales, Lows, Supers, place, n, group, expert, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
    CODES: tl.constexpr, LOWS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The scales of a group at places, float32 [BN], and the lows: int8 or float32, arbitrary if there are none."""
    inside = (place >= 0) & (group * GROUP < K)
    stored = load_some(Scales, place, inside, EVEN)
    if CODES == E2M1:
        exponent = stored.to(tl.int32)
        bits = tl.where(exponent == 0, 0x400000, exponent << 23)  # 2**-127 has no leading 1
        half = bits.to(tl.float32, bitcast=True) * 0.5  # of doubled numbers
        scale = tl.where(exponent == 255, float("nan"), half)
    else:
        scale = stored.to(tl.float32)
    low = scale
    if Supers is not None:
        COUNT: tl.constexpr = 2 if LOWS == MINIMA else 1
        block = n.to(tl.int64) + (expert * (K // SUPER) + group // (SUPER // GROUP)) * (COUNT * N)
        scale *= load_some(Supers, block, inside, EVEN).to(tl.float32)
        if LOWS == MINIMA:
            factor = load_some(Supers, block + N, inside, EVEN).to(tl.float32)
            low = load_some(Lows, place, inside, EVEN).to(tl.float32) * -factor
    elif LOWS == MINIMA:
        low = load_some(Lows, place, inside, EVEN).to(tl.float32)
    elif LOWS == ZEROS:
        low = load_some(Lows, place, inside, EVEN).to(tl.int8)
    return scale, low


SUPER: tl.constexpr = tl.constexpr(SUPER_BLOCK)


@triton.jit
def widen_kernel(
    Codes, Scales, Lows, Supers, Out, first, count, N: tl.constexpr, K: tl.constexpr, CODES: tl.constexpr,
    GROUP: tl.constexpr, HALVES: tl.constexpr, LOWS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """Out: [count, K], the outputs from `first` on."""
    begin(CHAINED)
    WIDTH: tl.constexpr = GROUP // HALVES
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    n = tl.minimum(first + i, N - 1)
    for u in tl.static_range(BK // GROUP):
        group = tl.program_id(1) * (BK // GROUP) + u
        place = place_of(n, group, 0, N, K, GROUP)
        codes = load_codes(Codes, place, group, K, GROUP, HALVES, K % BK == 0)
        scale, low = load_scales(
            Scales, Lows, Supers, place, n, group, 0, N, K, GROUP, CODES, LOWS, K % BK == 0
        )
        for half in tl.static_range(HALVES):
            value = decoded(codes, low, half, CODES, LOWS, tl.float32) * scale[:, None]
            if LOWS == MINIMA:
                value += low[:, None]
            k = group * GROUP + half * WIDTH + tl.arange(0, WIDTH)
            target = Out + i.to(tl.int64)[:, None] * K + k[None, :]
            tl.store(target, value.to(Out.dtype.element_ty), mask=(i < count)[:, None] & (k < K)[None, :])


def widen(blocks: DeviceBlocks, first: int, out: Tensor) -> None:
    """Write the numbers of some outputs, from `first` on, to `out` [count, K], contiguous."""
    count, inputs = out.shape
    grid = (triton.cdiv(count, OUTPUTS), triton.cdiv(inputs, INPUTS))
    tensors, constants = arguments_of(blocks)
    widen_kernel[grid](
        *tensors, out, first, count, blocks.num_outputs, inputs,
        *constants, OUTPUTS, INPUTS, **chain_options(out),
    )  # fmt: skip
