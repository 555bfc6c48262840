"""The reference for routers: each row by sorting, in float64; and choices as real models make them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from weft.ops.routing import Choice, Scores

DEEPSEEK_V3 = Choice(
    8, Scores.SIGMOID, renormalize=True, scale=2.5, num_groups=8, num_top_groups=4, group_top=2, num_shared=1
)
QWEN3_NEXT = Choice(10, renormalize=True, num_shared=1, shared_gate=True)
CHOICES = {
    # experts, choice, whether there is a bias
    "mixtral": (8, Choice(2, renormalize=True), False),
    "qwen3-moe": (128, Choice(8, renormalize=True), False),
    "olmoe": (64, Choice(8), False),
    "gpt-oss": (32, Choice(4, Scores.TOP_SOFTMAX), False),
    "qwen3-next": (512, QWEN3_NEXT, False),
    "deepseek v2": (160, Choice(6, scale=16.0, num_groups=8, num_top_groups=3, num_shared=2), False),
    "deepseek v3": (256, DEEPSEEK_V3, True),
    "one group": (12, Choice(5, Scores.SIGMOID, num_groups=2, group_top=2, scale=0.5), True),
    "ernie": (40, Choice(6, renormalize=True, num_shared=3), True),
    "top-biased": (7, Choice(3, Scores.TOP_SOFTMAX, renormalize=True), True),
    "all": (5, Choice(5), False),
    "one": (1, Choice(1, Scores.SIGMOID), False),
}


def logits_of(name: str, rows: int, seed: int = 0) -> tuple[Tensor, Tensor | None]:
    """Random logits and a bias for a choice."""
    experts, choice, has_bias = CHOICES[name]
    generator = torch.Generator().manual_seed(1000 * seed + experts)
    logits = torch.randn(rows, experts + choice.shared_gate, generator=generator) * 3
    return logits, torch.randn(experts, generator=generator) / 4 if has_bias else None


def by_sorting(logits: Tensor, choice: Choice, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Indices, and weights in float64."""
    gate = torch.ones(len(logits), 1, dtype=torch.float64)
    if choice.shared_gate:
        logits, gate = logits[:, :-1], logits[:, -1:].double().sigmoid()
    num_rows, experts = logits.shape
    scores = {
        Scores.SOFTMAX: lambda x: x.softmax(-1),
        Scores.SIGMOID: torch.sigmoid,
        Scores.TOP_SOFTMAX: lambda x: x,
    }[choice.scores](logits.double())
    ranks = scores if bias is None else scores + bias.double()
    groups = ranks.view(num_rows, choice.num_groups, -1)
    best = _first(
        groups.sort(dim=-1, descending=True).values[..., : choice.group_top].sum(-1), choice.num_top_groups
    )
    is_open = torch.zeros(groups.shape[:2], dtype=torch.bool).scatter_(1, best, True)
    others = ~is_open.repeat_interleave(experts // choice.num_groups, 1)
    index = _first(ranks.masked_fill(others, -torch.inf), choice.top_k)
    weights = scores.gather(1, index)
    if choice.scores is Scores.TOP_SOFTMAX:
        weights = weights.softmax(-1)
    if choice.renormalize:
        weights = weights / weights.sum(-1, True)
    shared = torch.arange(experts, experts + choice.num_shared).expand(num_rows, -1)
    return torch.cat((index, shared), 1), torch.cat((weights * choice.scale, gate.expand_as(shared)), 1)


def _first(values: Tensor, count: int) -> Tensor:
    """The places of the largest values of each row; of equal ones the first."""
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def without_shared(choice: Choice) -> Choice:
    return replace(choice, num_shared=0, shared_gate=False)
