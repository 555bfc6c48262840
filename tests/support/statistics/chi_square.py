"""Pearson's chi-square test of counts against exact probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

CHANCE = 1e-8
"""A p-value below this fails a test. There are fewer than 1,000 p-values, so a right sampler fails less than once in
10^5 choices of the seeds; and the seeds are fixed."""

SMALLEST = 10.0
"""Cells that expect fewer samples are pooled: the statistic's distribution is only then near chi-square's."""


def p_value(counts: Tensor, probabilities: Tensor) -> float:
    """How likely counts [n] (integers) as far from `probabilities` [n] (float64, of sum 1) or farther are, by chance.

    0.0 where something happened that can not.
    """
    assert abs(float(probabilities.sum()) - 1) < 1e-9
    if int(counts[probabilities == 0].sum()):
        return 0.0
    order = probabilities.argsort()
    expected = probabilities[order] * int(counts.sum())
    pool = _pools(expected)
    cells = int(pool[-1]) + 1
    pooled = torch.zeros(cells, dtype=torch.float64).index_add_(0, pool, expected)
    observed = torch.zeros(cells, dtype=torch.float64).index_add_(0, pool, counts[order].double())
    statistic = ((observed - pooled) ** 2 / pooled).sum()
    return survival(float(statistic), cells - 1)


def least_p_value(counts: Tensor, probabilities: Tensor) -> float:
    """The least p-value of a table [m, ..., m] as a whole and of each of its margins, which find a small shift that is
    the same everywhere: too little for any one cell."""
    p_values = [p_value(counts.flatten(), probabilities.flatten())]
    for kept in range(counts.dim()):
        others = [axis for axis in range(counts.dim()) if axis != kept]
        p_values.append(p_value(counts.sum(others), probabilities.sum(others)))
    return min(p_values)


def survival(statistic: float, degrees: int) -> float:
    """The probability that a chi-square variate of so many degrees of freedom is at least `statistic`."""
    if degrees == 0:
        return 1.0
    half = torch.tensor((degrees / 2, statistic / 2), dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _pools(expected: Tensor) -> Tensor:
    """The cell of each of `expected`, ascending: as few together as reach SMALLEST; the last take what is left."""
    pools, cell, total = [], 0, 0.0
    for value in expected.tolist():
        pools.append(cell)
        total += value
        if total >= SMALLEST:
            cell, total = cell + 1, 0.0
    return torch.tensor(pools).clamp_(max=max(cell - 1, 0))
