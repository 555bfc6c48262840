"""Pearson's chi-square test of counts against exact probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

CHANCE = 1e-8
"""A p-value below this fails a test. There are fewer than 1,000 p-values, so a correct sampler fails for fewer than
one in 10^5 choices of the seeds. The seeds are fixed."""

SMALLEST = 10.0
"""Cells with fewer expected samples are pooled. Otherwise the statistic would not be close to a chi-square
distribution."""


def p_value(counts: Tensor, probabilities: Tensor) -> float:
    """Return the probability that counts deviate from `probabilities` at least as much by chance. Counts are
    integers [n]; probabilities are float64 [n] with sum 1.

    0.0 if an impossible outcome was counted.
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
    """Return the smallest p-value of a table [m, ..., m] and of its margins. Margins reveal a shift that is the same
    everywhere but too small in each single cell."""
    p_values = [p_value(counts.flatten(), probabilities.flatten())]
    for kept in range(counts.dim()):
        others = [axis for axis in range(counts.dim()) if axis != kept]
        p_values.append(p_value(counts.sum(others), probabilities.sum(others)))
    return min(p_values)


def survival(statistic: float, degrees: int) -> float:
    """The probability that a chi-square variate with `degrees` degrees of freedom is at least `statistic`."""
    if degrees == 0:
        return 1.0
    half = torch.tensor((degrees / 2, statistic / 2), dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def _pools(expected: Tensor) -> Tensor:
    """Return the pool of each entry of `expected`, which is ascending. A pool has as few entries as reach SMALLEST;
    the last pool takes the rest."""
    pools, cell, total = [], 0, 0.0
    for value in expected.tolist():
        pools.append(cell)
        total += value
        if total >= SMALLEST:
            cell, total = cell + 1, 0.0
    return torch.tensor(pools).clamp_(max=max(cell - 1, 0))
