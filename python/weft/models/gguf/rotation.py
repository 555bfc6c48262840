"""Reorders rows of query and key projections between the orders of GGUF and of model directories.

In a head of size D, a model directory's Llama rotates elements i and i + D/2, and GGUF's Llama rotates elements 2i and
2i + 1. So the two formats store the rows in different orders.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def side_by_side(rows: Array, heads: int) -> Array:
    """Reorder `rows` [heads * D, ...] from a model directory's order to GGUF's: pairs side by side."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def in_halves(rows: Array, heads: int) -> Array:
    """Reorder `rows` [heads * D, ...] from GGUF's order to a model directory's: pairs in two halves."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
