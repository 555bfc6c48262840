"""The order of rows in query and key projections.

In a model directory, rotary embedding rotates elements i and i + D/2 of a head of size D; in GGUF's Llama, elements 2i
and 2i + 1. So the two formats store the rows of these projections in different orders.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def side_by_side(rows: Array, heads: int) -> Array:
    """Reorder the rows of `heads` heads from a directory's order to GGUF's."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def in_halves(rows: Array, heads: int) -> Array:
    """Reorder the rows of `heads` heads from GGUF's order to a directory's."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
