"""The formats of weights: the same numbers and sizes in Python and in the native kernels."""

from __future__ import annotations

import pytest

from weft import _core
from weft.ops.formats import Activations, Format


def test_the_native_kernels_have_the_same_blocks() -> None:
    assert _core.num_formats() == len(Format)
    for kind in Format:
        block = kind.block
        assert _core.block_size(kind) == (block.inputs, block.bytes, block.half_bytes)
        assert block.half_bytes % 64 == 0


@pytest.mark.parametrize("kind", list(Format), ids=lambda kind: kind.name)
def test_panels_are_whole_blocks(kind: Format) -> None:
    block = kind.block
    inputs = 3 * block.inputs
    assert _core.panel_bytes(kind, Activations.FLOAT32, inputs) == 6 * block.half_bytes
    if kind.is_quantized:
        assert _core.panel_bytes(kind, Activations.INT8, inputs - 1) == 6 * block.half_bytes


def test_tiles_have_whole_blocks_of_inputs() -> None:
    assert _core.panel_bytes(Format.BF16, Activations.TWO_BFLOAT16, 33) == 2 * 64 * 32 * 2
