"""The router of a mixture of experts in Triton: one kernel, a program for a row's choice and another for its norm."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from weft.ops.routing import Scores
from weft.ops.rows_triton import normed
from weft.ops.triton_launch import begin, chain_options, is_padding

SOFTMAX: tl.constexpr = tl.constexpr(int(Scores.SOFTMAX))
SIGMOID: tl.constexpr = tl.constexpr(int(Scores.SIGMOID))
TOP_SOFTMAX: tl.constexpr = tl.constexpr(int(Scores.TOP_SOFTMAX))
TAKEN: tl.constexpr = tl.constexpr(-(1 << 31))  # less than the key of every number
LARGEST: tl.constexpr = tl.constexpr((1 << 31) - 1)


@triton.jit
def sort_keys(x):
    """Integers in the order of the numbers `x`, float32. A NaN is the largest."""
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    return tl.where(x != x, LARGEST, tl.where(bits < 0, bits ^ LARGEST, bits))


@triton.jit
def of_keys(keys):
    """The numbers of `sort_keys`."""
    return tl.where(keys < 0, keys ^ LARGEST, keys).to(tl.float32, bitcast=True)


@triton.jit
def first_largest(keys, AXIS: tl.constexpr):
    """The largest keys along an axis, and their first places."""
    return tl.max(keys, AXIS, return_indices=True, return_indices_tie_break_left=True)


@triton.jit
def without_other_groups(
    keys, lane, EXPERTS: tl.constexpr, LANES: tl.constexpr, GROUPS: tl.constexpr, GROUP_LANES: tl.constexpr,
    TOP_GROUPS: tl.constexpr, GROUP_TOP: tl.constexpr,
):  # fmt: skip
    """`keys` [LANES], with TAKEN in place of those outside the best TOP_GROUPS of GROUPS groups."""
    SIZE: tl.constexpr = EXPERTS // GROUPS
    group = tl.arange(0, GROUP_LANES)
    tile = tl.where(
        (lane // SIZE)[None, :] == group[:, None], tl.broadcast_to(keys[None, :], (GROUP_LANES, LANES)), TAKEN
    )
    of_group, place = first_largest(tile, 1)
    if GROUP_TOP == 2:
        second, _ = first_largest(tl.where(lane[None, :] == place[:, None], TAKEN, tile), 1)
        of_group = sort_keys(of_keys(of_group) + of_keys(second))
    of_group = tl.where(group < GROUPS, of_group, TAKEN)
    chosen = lane < 0
    for _ in tl.static_range(TOP_GROUPS):
        _, best = first_largest(of_group, 0)
        of_group = tl.where(group == best, TAKEN, of_group)
        chosen = chosen | (lane // SIZE == best)
    return tl.where(chosen, keys, TAKEN)


@triton.jit
def norm_row(X, Norm, Rows, row, x_row, rows_row, eps, H, BLOCK: tl.constexpr):
    """Write the norm of a row of X to Rows. Without Norm, do nothing."""
    if Norm is not None:
        h = tl.arange(0, BLOCK)
        value = normed(X + row * x_row, Norm, eps, h, H)
        tl.store(Rows + row * rows_row + h, value.to(Rows.dtype.element_ty), mask=h < H)


@triton.jit(do_not_specialize=["scale", "eps"], do_not_specialize_on_alignment=["Live"])
def choose_kernel(
    Logits, Bias, Live, Index, Weights, X, Norm, Rows, logits_row, x_row, rows_row, scale, eps, H,
    EXPERTS: tl.constexpr, LANES: tl.constexpr, TOP: tl.constexpr, SHARED: tl.constexpr, CHOSEN: tl.constexpr,
    SCORES: tl.constexpr, RENORMALIZES: tl.constexpr, GROUPS: tl.constexpr, GROUP_LANES: tl.constexpr,
    TOP_GROUPS: tl.constexpr, GROUP_TOP: tl.constexpr, SHARED_GATE: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """A program chooses a row's experts (0) or norms the row (1). LANES, GROUP_LANES and CHOSEN are powers of 2, at
    least EXPERTS, GROUPS and TOP + SHARED."""
    begin(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    if is_padding(row, Live):
        return
    if tl.program_id(1) == 1:
        norm_row(X, Norm, Rows, row, x_row, rows_row, eps, H, BLOCK)
        return
    lane = tl.arange(0, LANES)
    is_expert = lane < EXPERTS
    scores = tl.load(Logits + row * logits_row + lane, mask=is_expert, other=-float("inf")).to(tl.float32)
    if SCORES == SOFTMAX:
        powers = tl.exp(scores - tl.max(scores, 0))
        scores = powers / tl.sum(powers, 0)
    elif SCORES == SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-scores))
    ranks = scores
    if Bias is not None:
        ranks += tl.load(Bias + lane, mask=is_expert, other=0.0)
    keys = tl.where(is_expert, sort_keys(ranks), TAKEN)
    if TOP_GROUPS < GROUPS:
        keys = without_other_groups(keys, lane, EXPERTS, LANES, GROUPS, GROUP_LANES, TOP_GROUPS, GROUP_TOP)
    j = tl.arange(0, CHOSEN)
    index = EXPERTS + j - TOP
    weights = tl.full((CHOSEN,), -float("inf"), tl.float32)
    for n in tl.static_range(TOP):
        _, best = first_largest(keys, 0)
        keys = tl.where(lane == best, TAKEN, keys)
        index = tl.where(j == n, best, index)
        weights = tl.where(j == n, tl.sum(tl.where(lane == best, scores, 0.0), 0), weights)
    if SCORES == TOP_SOFTMAX:
        weights = tl.exp(weights - tl.max(weights, 0))
    weights = tl.where(j < TOP, weights, 0.0)
    if RENORMALIZES or SCORES == TOP_SOFTMAX:
        weights = weights / (tl.sum(weights, 0) + 1e-20)  # as transformers; scores may all be 0
    gate = 1.0
    if SHARED_GATE:
        gate = 1.0 / (1.0 + tl.exp(-tl.load(Logits + row * logits_row + EXPERTS).to(tl.float32)))
    weights = tl.where(j < TOP, weights * scale, gate)
    target = row * (TOP + SHARED) + j
    tl.store(Index + target, index.to(tl.int64), mask=j < TOP + SHARED)
    tl.store(Weights + target, weights, mask=j < TOP + SHARED)


def choose(
    logits: Tensor,
    bias: Tensor | None,
    experts: int,
    top_k: int,
    scores: int,
    renormalize: bool,
    scale: float,
    groups: int,
    top_groups: int,
    group_top: int,
    shared: int,
    shared_gate: bool,
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    index: Tensor,
    weights: Tensor,
    rows: Tensor | None,
    live: Tensor | None = None,
) -> None:
    """Launch `weft.ops.routing.choose` for `experts` experts, without the shared ones."""
    if len(logits) == 0:
        return
    size = x.shape[1]
    choose_kernel[(len(logits), 1 if rows is None else 2)](
        logits, bias, live, index, weights, x, norm, rows, logits.stride(0), x.stride(0),
        0 if rows is None else rows.stride(0), scale, eps, size, experts, triton.next_power_of_2(experts), top_k,
        shared, triton.next_power_of_2(top_k + shared), scores, renormalize, groups, triton.next_power_of_2(groups),
        top_groups, group_top, shared_gate, triton.next_power_of_2(size), **chain_options(x),
        num_warps=4 if size <= 2048 else 8,
    )  # fmt: skip
