"""The order of rows of query and key projections.

A directory's rotary embedding turns number i of a head with number i + D/2 (D: the head's size), GGUF's Llama number 2i
with number 2i + 1. So the rows of these projections are stored in another order, and the products are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def side_by_side(rows: Array, heads: int) -> Array:
    """Rows of `heads` heads as a directory has them, in GGUF's order."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def in_halves(rows: Array, heads: int) -> Array:
    """The way back."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
