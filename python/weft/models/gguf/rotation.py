"""Reorders rows of query and key projections between the orders of GGUF and of model directories.

In a head of size D, a model directory's Llama rotates elements i and i + D/2, and GGUF's Llama rotates elements 2i and
2i + 1. So the two formats store the rows in different orders.
"""

from __future__ import annotations

from torch import Tensor


def side_by_side(rows: Tensor, heads: int) -> Tensor:
    """Reorder `rows` [heads * D, ...] from a model directory's order to GGUF's: pairs side by side."""
    ordered: Tensor = rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)
    return ordered


def in_halves(rows: Tensor, heads: int) -> Tensor:
    """Reorder `rows` [heads * D, ...] from GGUF's order to a model directory's: pairs in two halves."""
    ordered: Tensor = rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(rows.shape)
    return ordered
