"""The router of a mixture of experts: from a row's logits the experts that serve it, and their weights.

A `Linear` makes the logits, and applies the layer's norm to its input. `choose` is the operation after it. It also
writes the normed rows, which the experts read (`weft.ops.experts`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from weft import _core
from weft.ops.library import address, device_of, register, require, run_kernel, triton_kernels
from weft.ops.linear import Norm


class Scores(IntEnum):
    """How logits become scores, by which experts are chosen and weighted. The numbers are the kernels'."""

    SOFTMAX = 0
    SIGMOID = 1
    TOP_SOFTMAX = 2
    """Experts are chosen by their logits; the weights are the softmax of the chosen logits."""


@dataclass(frozen=True)
class Choice:
    """How a router chooses experts and weights them.

    Weights are the scores of the `top_k` chosen experts, with `renormalize` divided by their sum, times `scale`.
    Experts may be in `num_groups` groups of equal size, in order: then only the experts of the `num_top_groups` best
    groups are chosen. A group's value is the sum of its `group_top` (1 or 2) best experts.

    After the chosen experts come `num_shared` shared ones, which serve every row. Their weight is 1, or with
    `shared_gate` the sigmoid of one more logit.
    """

    top_k: int
    scores: Scores = Scores.SOFTMAX
    renormalize: bool = False
    scale: float = 1.0
    num_groups: int = 1
    num_top_groups: int = 1
    group_top: int = 1
    num_shared: int = 0
    shared_gate: bool = False

    def __post_init__(self) -> None:
        require(self.top_k > 0 and self.num_shared >= 0, "a row needs at least one expert")
        require(
            1 <= self.num_top_groups <= self.num_groups,
            f"of {self.num_groups} groups of experts, {self.num_top_groups} cannot be chosen",
        )
        require(self.group_top in (1, 2), f"a group's value is of 1 or 2 experts, not {self.group_top}")
        require(self.num_shared > 0 or not self.shared_gate, "without shared experts there is no gate")


class Chosen(NamedTuple):
    """The first arguments of `Experts`: rows [N, H], the indices of their experts, int64 [N, k + shared], and weights,
    float32 of the same shape. The chosen experts of a row are in falling order of score + bias; the shared ones have
    the indices from E on."""

    rows: Tensor
    experts: Tensor
    weights: Tensor


def choose(
    logits: Tensor,
    choice: Choice,
    choice_bias: Tensor | None,
    x: Tensor,
    norm: Norm | None,
    live: Tensor | None = None,
) -> Chosen:
    """Choose the experts of each row from its logits [N, E], or [N, E + 1] with `choice.shared_gate`.

    choice_bias: float32 [E], added to scores for the choice only. Of equal scores, the expert with the lower index is
    chosen. x: [N, H]; the rows of the result are norm(x), or `x` without `norm`. live: int64 [1], the number of live
    rows; the others are neither read nor written. On the CPU, logits and x are float32. On CUDA, logits may have any
    dtype. Rows may be apart. The arithmetic is in float32."""
    num_rows, num_chosen = logits.shape[0], choice.top_k + choice.num_shared
    index = torch.empty(num_rows, num_chosen, dtype=torch.int64, device=logits.device)
    weights = torch.empty(num_rows, num_chosen, dtype=torch.float32, device=logits.device)
    rows, weight, eps = (None, None, 0.0) if norm is None else (x.new_empty(x.shape), norm.weight, norm.eps)
    _CHOOSE(
        logits, choice_bias, choice.top_k, int(choice.scores), choice.renormalize, choice.scale, choice.num_groups,
        choice.num_top_groups, choice.group_top, choice.num_shared, choice.shared_gate, x, weight, eps, index, weights,
        rows, live,
    )  # fmt: skip
    return Chosen(x if rows is None else rows, index, weights)


def _check(
    logits: Tensor,
    bias: Tensor | None,
    top_k: int,
    groups: int,
    top_groups: int,
    group_top: int,
    gate: bool,
    x: Tensor,
) -> int:
    """Raise InputError unless the arguments fit each other. Returns the number of experts to choose from."""
    experts = logits.shape[1] - gate
    require(
        experts % groups == 0 and top_k <= experts // groups * top_groups and group_top <= experts // groups,
        f"{top_k} of {experts} experts cannot be chosen from {top_groups} of {groups} groups",
    )
    require(
        bias is None or (bias.dtype is torch.float32 and bias.shape == (experts,) and bias.is_contiguous()),
        f"choice_bias is float32 [{experts}], contiguous",
    )
    require(
        x.shape[0] == logits.shape[0], f"there are {logits.shape[0]} rows of logits, but x is {list(x.shape)}"
    )
    require(logits.stride(1) == 1 and x.stride(1) == 1, "the last dimension must be contiguous")
    return experts


def _choose_cpu(
    logits: Tensor,
    bias: Tensor | None,
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
    require(
        logits.dtype is x.dtype is torch.float32,
        f"on the CPU logits and activations are float32, not {logits.dtype} and {x.dtype}",
    )
    experts = _check(logits, bias, top_k, groups, top_groups, group_top, shared_gate, x)
    kernel = _core.choose_cpu(
        logits.data_ptr(), address(bias), index.data_ptr(), weights.data_ptr(), logits.shape[0], logits.stride(0),
        scores, renormalize, shared_gate, scale, experts, top_k, groups, top_groups, group_top, shared, x.data_ptr(),
        address(norm), address(rows), x.shape[1], x.stride(0), 0 if rows is None else rows.stride(0), eps,
        torch.get_num_threads(), address(live),
    )  # fmt: skip
    run_kernel("choose", kernel)


def _choose_cuda(
    logits: Tensor,
    bias: Tensor | None,
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
    experts = _check(logits, bias, top_k, groups, top_groups, group_top, shared_gate, x)
    with device_of(x):
        triton_kernels("routing_triton").choose(
            logits, bias, experts, top_k, scores, renormalize, scale, groups, top_groups, group_top, shared,
            shared_gate, x, norm, eps, index, weights, rows, live,
        )  # fmt: skip


_CHOOSE = register(
    "choose(Tensor logits, Tensor? bias, int top_k, int scores, bool renormalize, float scale, int groups,"
    " int top_groups, int group_top, int shared, bool shared_gate, Tensor x, Tensor? norm, float eps, Tensor(a!) index,"
    " Tensor(b!) weights, Tensor(c!)? rows, Tensor? live=None) -> ()",
    cpu=_choose_cpu,
    cuda=_choose_cuda,
)
