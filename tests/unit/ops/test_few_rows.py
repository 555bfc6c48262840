"""The CPU's product of few rows: torch's values, and a row's bits whatever stands beside it."""

from __future__ import annotations

import itertools

import pytest
import torch

from weft.models.layers import Linear
from weft.ops.attention import paged_attention
from weft.ops.few_rows import FEW_ROWS, few_rows_linear, few_rows_linear_add_, panels_of


@pytest.mark.parametrize(
    ("outputs", "inputs"), list(itertools.product([1, 15, 16, 63, 64, 65, 200, 704], [1, 2, 31, 192]))
)
def test_values_are_torchs(outputs: int, inputs: int) -> None:
    torch.manual_seed(outputs * 1000 + inputs)
    weight = torch.randn(outputs, inputs)
    panels = panels_of(weight)
    for rows in (1, 2, 3, 5, 6, 7, 11, 12, 13, 24, 31):
        x = torch.randn(rows, inputs + 3)[:, 1 : inputs + 1]  # rows any distance apart
        expected = x.double() @ weight.double().T
        torch.testing.assert_close(
            few_rows_linear(x, panels, outputs).double(), expected, rtol=1e-5, atol=1e-5
        )
        residual = torch.randn(rows, outputs + 2)[:, :outputs]
        sums = residual.double() + expected
        few_rows_linear_add_(residual, x, panels)
        torch.testing.assert_close(residual.double(), sums, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_rows_bits_are_its_own(threads: int) -> None:
    torch.manual_seed(3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        panels = panels_of(torch.randn(1536, 192))
        x = torch.randn(FEW_ROWS, 192)
        alone = torch.cat([few_rows_linear(row[None], panels, 1536) for row in x])
        for rows in range(1, FEW_ROWS + 1):
            assert torch.equal(few_rows_linear(x[:rows], panels, 1536), alone[:rows])
    finally:
        torch.set_num_threads(before)


def test_a_layers_product_is_the_same_before_and_after_the_limit() -> None:
    torch.manual_seed(4)
    linear = Linear(torch.randn(96, 48), torch.randn(96))
    x = torch.randn(FEW_ROWS + 9, 48)
    residual = torch.zeros(FEW_ROWS, 96)
    linear.add_to_(residual, x[:FEW_ROWS])
    torch.testing.assert_close(linear(x)[:FEW_ROWS], linear(x[:FEW_ROWS]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(residual, linear(x[:FEW_ROWS]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head_dim", [6, 16, 32, 48, 64, 128])
def test_a_querys_attention_is_the_same_alone_and_among_others(head_dim: int) -> None:
    """So verification of drafts sees the logits of decoding without them, to the bit."""
    torch.manual_seed(head_dim)
    cache = torch.randn(9, 16, 2, 3, head_dim)
    page_table = torch.randperm(8)[None].int() + 1
    q = torch.randn(1, 9, 6, head_dim)
    positions = torch.arange(77, 86)[None]
    together = paged_attention(q, cache, page_table, positions, 0.2)
    for t in range(9):
        alone = paged_attention(q[:, t : t + 1], cache, page_table, positions[:, t : t + 1], 0.2)
        assert torch.equal(alone[:, 0], together[:, t])
