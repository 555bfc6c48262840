"""Mixtures of experts in Triton: kernels with static grids, whose numbers of rows are data on the device.

A choice is a row and one of its experts. `experts_kernel` multiplies the choices' rows by their experts' weights, once
for the up projection with its activation and once for the down projection. `combine_kernel` adds the weighted results
of each row, in the order of its choices, and then the residual.

A program of `experts_kernel` computes a tile of outputs for up to BM choices of one expert. There are as many programs
as any choice of experts needs; the others end at once, so the weights of experts without rows are not read. Of at most
FEW_CHOICES, a program reads all and finds its tile (`tile_of_few`). More of them are sorted by expert first, by
`sort_kernel`, and a program finds its tile among the experts' first places (`tile_of_sorted`). Both give the same bits.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.ops.activation import Epilogue, Function
from weft.ops.activation_triton import activated, gated
from weft.ops.blocks_triton import (
    DENSE,
    add_product,
    add_scaled,
    arguments_of,
    element_bytes,
    load_codes,
    load_scales,
    place_of,
)
from weft.ops.device_blocks import Stored, num_matrices, num_outputs
from weft.ops.library import require
from weft.ops.linear_triton import activate, load_inputs, row_stride, weight_rows
from weft.ops.triton_launch import begin, chain_options, is_padding

SORT_BLOCK, SORT_OTHERS = 32, 128
COMBINE_BLOCK = 1024
FEW_ROWS_OF_EXPERT = 16
FEW_CHOICES = 128
"""As many choices are not sorted: each program compares all."""
MAX_EXPERTS = 1 << 10
MAX_CHOICES: tl.constexpr = tl.constexpr(1 << 21)  # with MAX_EXPERTS, sort keys fit int32


class Tiles(NamedTuple):
    """The rows, outputs and inputs of a tile, the number of tiles in flight, and the number of warps of a program."""

    rows: int
    outputs: int
    inputs: int
    stages: int
    warps: int


def choose_tiles(choices: int, experts: int, element: float) -> Tiles:
    """Tiles for `choices` rows of all experts, and weights with elements of `element` bytes. Few rows take the time of
    reading the weights; many rows share each tile of weights."""
    few = choices <= FEW_ROWS_OF_EXPERT * experts
    if element < 2:  # with a tile's inputs in whole groups
        return Tiles(16, 64, 128, 4 if element < 1 else 3, 4) if few else Tiles(32, 128, 128, 3, 8)
    if element > 2:
        return Tiles(16 if few else 32, 64, 32, 3, 4)
    return Tiles(16, 64, 128, 3, 4) if few else Tiles(64, 128, 64, 3, 8)


@triton.jit
def live_choices(Live, choices, CHOSEN: tl.constexpr):
    """The number of choices of live rows."""
    live = choices
    if Live is not None:
        live = tl.minimum(choices, tl.load(Live) * CHOSEN).to(tl.int32)
    return live


@triton.jit
def experts_of(Index, choice, live, E: tl.constexpr):
    """The experts of choices, int32. Expert E stands for none: the choice is not live, or its index is no expert."""
    expert = tl.load(Index + choice, mask=choice < live, other=E)
    return tl.where((expert >= 0) & (expert < E), expert, E).to(tl.int32)


@triton.jit
def sort_keys(Index, choice, live, E: tl.constexpr):
    """Numbers in whose order choices are sorted: by expert, then by choice."""
    return experts_of(Index, choice, live, E) * MAX_CHOICES + choice


@triton.jit(do_not_specialize=["choices"], do_not_specialize_on_alignment=["Live"])
def sort_kernel(
    Index, Live, Starts, Order, Places, choices, E: tl.constexpr, CHOSEN: tl.constexpr, BLOCK: tl.constexpr,
    OTHERS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Places [choices]: the sorted place of each choice, or -1 without an expert; Order: the choice at each place.
    Starts [E + 1]: the first place of each expert, then the number of places. A program finds BLOCK places or starts by
    counting the smaller keys, OTHERS at once."""
    begin(CHAINED)
    live = live_choices(Live, choices, CHOSEN)
    blocks = tl.cdiv(choices, BLOCK)
    program = tl.program_id(0)
    choice = program * BLOCK + tl.arange(0, BLOCK)
    expert = (program - blocks) * BLOCK + tl.arange(0, BLOCK)
    key = tl.where(program < blocks, sort_keys(Index, choice, live, E), expert * MAX_CHOICES)
    smaller = tl.zeros([BLOCK, OTHERS], tl.int32)
    for first in range(0, live, OTHERS):
        others = sort_keys(Index, first + tl.arange(0, OTHERS), live, E)
        smaller += (others[None, :] < key[:, None]).to(tl.int32)
    place = tl.sum(smaller, 1)
    if program < blocks:
        has_expert = key < E * MAX_CHOICES
        tl.store(Places + choice, tl.where(has_expert, place, -1), mask=choice < choices)
        tl.store(Order + place, choice, mask=has_expert)
    else:
        tl.store(Starts + expert, place, mask=expert <= E)


@triton.jit
def tile_of_sorted(Starts, number, E: tl.constexpr, LANES: tl.constexpr, BM: tl.constexpr):
    """The expert of tile `number`, E if there is none, and the places of its choices [BM], and which there are."""
    lane = tl.arange(0, LANES)
    starts = tl.load(Starts + lane, mask=lane < E, other=0)
    ends = tl.load(Starts + lane + 1, mask=lane < E, other=0)
    tiles = (ends - starts + BM - 1) // BM
    through = tl.cumsum(tiles, 0)
    expert = tl.sum((through <= number).to(tl.int32), 0)
    is_mine = lane == expert
    first = tl.sum(tl.where(is_mine, starts + (number - through + tiles) * BM, 0), 0)
    end = tl.sum(tl.where(is_mine, ends, 0), 0)
    place = first + tl.arange(0, BM)
    return expert, place, place < end


@triton.jit
def tile_of_few(
    Index, Live, number, choices, E: tl.constexpr, CHOSEN: tl.constexpr, CHOICES: tl.constexpr, BM: tl.constexpr
):  # fmt: skip
    """The tile whose first choice is `number`: as `tile_of_sorted`, with the choices as places. There is none if the
    choice is not the first one of a tile of its expert's choices."""
    live = live_choices(Live, choices, CHOSEN)
    choice = tl.arange(0, CHOICES)
    experts = experts_of(Index, choice, live, E)
    is_first = choice == number
    expert = tl.sum(tl.where(is_first, experts, 0), 0)
    same = (experts == expert).to(tl.int32)
    rank = tl.cumsum(same, 0) - same
    first = tl.sum(tl.where(is_first, rank, 0), 0)
    wanted = first + tl.arange(0, BM)
    is_at = (rank[None, :] == wanted[:, None]) & (same[None, :] > 0)
    place = tl.sum(tl.where(is_at, choice[None, :], 0), 1)
    return tl.where(first % BM == 0, expert, E), place, tl.sum(is_at.to(tl.int32), 1) > 0


@triton.jit
def add_group(
    acc, x_rows, live, Codes, Scales, Lows, Supers, n, group, expert, N: tl.constexpr, K: tl.constexpr,
    CODES: tl.constexpr, GROUP: tl.constexpr, HALVES: tl.constexpr, LOWS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """`acc` plus the product of a group of inputs with an expert's codes."""
    WIDTH: tl.constexpr = GROUP // HALVES
    place = place_of(n, group, expert, N, K, GROUP)
    codes = load_codes(Codes, place, group, K, GROUP, HALVES, EVEN)
    scale, low = load_scales(Scales, Lows, Supers, place, n, group, expert, N, K, GROUP, CODES, LOWS, EVEN)
    sums = tl.zeros(acc.shape, tl.float32)
    x_sums = tl.zeros([acc.shape[0]], tl.float32)
    for half in tl.static_range(HALVES):
        x = load_inputs(x_rows, group * GROUP + half * WIDTH + tl.arange(0, WIDTH), live, K, EVEN)
        sums, x_sums = add_product(sums, x_sums, x, codes, low, half, CODES, LOWS)
    return add_scaled(acc, sums, x_sums, scale, low, LOWS)


@triton.jit(do_not_specialize=["slope", "limit", "shift", "choices"], do_not_specialize_on_alignment=["Live"])
def experts_kernel(
    X, W, Scales, Lows, Supers, Bias, Starts, Order, Index, Live, Out, x_row, bias_row, out_row, choices, slope, limit,
    shift, E: tl.constexpr, N: tl.constexpr, K: tl.constexpr, CHOSEN: tl.constexpr, LANES: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BY_ROW: tl.constexpr, GATED: tl.constexpr,
    FUNCTION: tl.constexpr, CODES: tl.constexpr, GROUP: tl.constexpr, HALVES: tl.constexpr, LOWS: tl.constexpr,
    STAGES: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """W: [E, N, K] if CODES is DENSE, else codes with Scales, Lows and Supers; gates come before ups. Bias: float32
    [E, N]; Out: [places, N], or N / 2 with GATED. X has a row for each place, or with BY_ROW for each row of Index.
    LANES: a power of 2, at least E, or without Starts at least `choices`."""
    begin(CHAINED)
    tile = tl.program_id(0)
    number = tl.program_id(1)
    if Starts is not None:
        expert, place, live = tile_of_sorted(Starts, number, E, LANES, BM)
    else:
        expert, place, live = tile_of_few(Index, Live, number, choices, E, CHOSEN, LANES, BM)
    if expert >= E:
        return
    row = place
    if BY_ROW:
        if Order is not None:
            row = tl.load(Order + place, mask=live, other=0)
        row = row // CHOSEN
    x_rows = X + row.to(tl.int64)[:, None] * x_row
    i = tl.arange(0, BN)
    n, inside = weight_rows(tile, i, N, BN, GATED)
    w_rows = W + expert.to(tl.int64) * N * K + n[:, None] * K
    acc = tl.zeros([BN, BM] if CODES == DENSE else [BM, BN], tl.float32)
    for k0 in tl.range(0, K, BK, num_stages=STAGES):
        if CODES == DENSE:
            k = k0 + tl.arange(0, BK)
            x = load_inputs(x_rows, k, live, K, K % BK == 0)
            if K % BK == 0:
                w = tl.load(w_rows + k[None, :])
            else:
                w = tl.load(w_rows + k[None, :], mask=k[None, :] < K, other=0.0)
            acc = tl.dot(w.to(x.dtype), tl.trans(x), acc, input_precision="ieee")
        else:
            for u in tl.static_range(BK // GROUP):
                acc = add_group(
                    acc, x_rows, live, W, Scales, Lows, Supers, n, k0 // GROUP + u, expert, N, K, CODES, GROUP, HALVES,
                    LOWS, K % BK == 0,
                )  # fmt: skip
    if CODES == DENSE:
        acc = tl.trans(acc)
    if Bias is not None:
        acc += tl.load(Bias + expert * bias_row + n)[None, :]
    if GATED:
        gate, up = tl.split(tl.reshape(acc, (BM, BN // 2, 2)))
        value = gated(gate, up, slope, limit, shift, FUNCTION)
        column = tile * (BN // 2) + tl.arange(0, BN // 2)
        inside = column < N // 2
    else:
        value = activated(acc, slope, FUNCTION)
        column = tile * BN + i
    target = Out + place.to(tl.int64)[:, None] * out_row + column[None, :]
    tl.store(target, value.to(Out.dtype.element_ty), mask=live[:, None] & inside[None, :])


@triton.jit(do_not_specialize_on_alignment=["Live"])
def combine_kernel(
    Results, Places, Index, Weights, Residual, Live, Out, residual_row, out_row, H, E: tl.constexpr,
    CHOSEN: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Results: [places, H], Weights: float32 [rows, CHOSEN], Residual: [rows, H] or None. Without Places, the place of
    a choice is its number."""
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    if is_padding(row, Live):
        return
    h = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for j in range(CHOSEN):
        place = row * CHOSEN + j
        if Places is not None:
            place = tl.load(Places + place).to(tl.int64)
            has_expert = place >= 0
        else:
            expert = tl.load(Index + place)
            has_expert = (expert >= 0) & (expert < E)
        if has_expert:
            weight = tl.load(Weights + row * CHOSEN + j)
            total += weight * tl.load(Results + place * H + h, mask=h < H, other=0.0).to(tl.float32)
    if Residual is not None:
        total += tl.load(Residual + row * residual_row + h, mask=h < H, other=0.0).to(tl.float32)
    tl.store(Out + row * out_row + h, total.to(Out.dtype.element_ty), mask=h < H)


def experts(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    up: Sequence[Stored],
    down: Sequence[Stored],
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    gated: bool,
    function: int,
    slope: float,
    limit: float,
    shift: float,
    out: Tensor,
    live: Tensor | None = None,
    residual: Tensor | None = None,
    tiles: Tiles | None = None,
    is_sorted: bool | None = None,
) -> None:
    """Launch the experts of `weft.ops.experts.Experts`. up: [E, 2 I, H] with gates before ups, or [E, I, H], in parts
    of one format, one below the other. down: [E, H, I], so too. is_sorted: whether choices are sorted, by default if
    there are many. Each part takes a kernel; with gates in several parts another one activates the sums."""
    rows, chosen = index.shape
    choices, num_experts = rows * chosen, num_matrices(up[0])
    if choices == 0:
        return
    require(num_experts < MAX_EXPERTS, f"there may be at most {MAX_EXPERTS - 1} experts, not {num_experts}")
    require(choices < MAX_CHOICES.value, f"at most {MAX_CHOICES.value - 1} choices fit a call, not {choices}")
    num_ups = sum(map(num_outputs, up))
    inner = x.new_empty(choices, num_ups // 2 if gated else num_ups)
    results = x.new_empty(choices, sum(map(num_outputs, down)))
    is_whole = len(up) == 1 or not gated
    sums = inner if is_whole else x.new_empty(choices, num_ups, dtype=torch.float32)
    chain = chain_options(x)
    starts, order, places = None, None, None
    lanes = FEW_CHOICES
    if choices > FEW_CHOICES if is_sorted is None else is_sorted:
        starts, order, places = (
            torch.empty(size, dtype=torch.int32, device=x.device)
            for size in (num_experts + 1, choices, choices)
        )
        blocks = triton.cdiv(choices, SORT_BLOCK) + triton.cdiv(num_experts + 1, SORT_BLOCK)
        sort_kernel[(blocks,)](
            index, live, starts, order, places, choices, num_experts, chosen, SORT_BLOCK, SORT_OTHERS, **chain
        )
        lanes = triton.next_power_of_2(num_experts)

    def multiply(
        source: Tensor, parts: Sequence[Stored], bias: Tensor | None, target: Tensor, by_row: bool, gated: bool,
        function: int,
    ) -> None:  # fmt: skip
        first = 0
        for part in parts:
            tensors, constants = arguments_of(part)
            tile = tiles or choose_tiles(choices, num_experts, element_bytes(part))
            row_tiles = choices
            if starts is not None:  # each expert with rows has at most one tile that is not full
                row_tiles = choices // tile.rows + min(choices, num_experts)
            outputs = num_outputs(part)
            part_bias, part_target = None if bias is None else bias[:, first:], target[:, first:]
            experts_kernel[(triton.cdiv(outputs, tile.outputs), row_tiles)](
                source, *tensors, part_bias, starts, order, index, live, part_target, source.stride(0),
                row_stride(bias), part_target.stride(0), choices, slope, limit, shift, num_experts, outputs,
                source.shape[1], chosen, lanes, tile.rows, tile.outputs, tile.inputs, by_row, gated, function,
                *constants, tile.stages, **chain, num_warps=tile.warps,
            )  # fmt: skip
            first += outputs

    none = int(Function.NONE)
    multiply(x, up, up_bias, sums, True, gated and is_whole, function if is_whole else none)
    if not is_whole:
        activate(sums, None, Epilogue(True, function, slope, limit, shift), inner)
    multiply(inner, down, down_bias, results, False, False, none)
    combine_kernel[(rows, triton.cdiv(out.shape[1], COMBINE_BLOCK))](
        results, places, index, weights, residual, live, out, row_stride(residual), out.stride(0),
        out.shape[1], num_experts, chosen, COMBINE_BLOCK, **chain,
    )  # fmt: skip
