"""Products with AMX's tiles, in tests."""

from __future__ import annotations

import pytest

from weft import _core
from weft.ops.formats import Activations, Format

HAS_TILES = _core.can_multiply(Format.BF16, Activations.TWO_BFLOAT16)
NEEDS_AMX = pytest.mark.skipif(not HAS_TILES, reason="needs a processor with AMX")


def rounding(tiled: bool | None) -> Activations | None:
    """The activations for products with tiles, without, or as is the default."""
    if tiled is None:
        return None
    return Activations.TWO_BFLOAT16 if tiled else Activations.FLOAT32
