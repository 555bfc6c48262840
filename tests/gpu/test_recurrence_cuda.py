"""Layers with a state by slot on a GPU: random traces, and the sizes of real models."""

from __future__ import annotations

import pytest
import torch

from support.kernels.recurrence import KINDS, Kind, Layer, Machine, Piece, Trace
from weft.models.memory import Convolution, Decay, Recurrence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

LARGE = (
    Kind("qwen3-next", (Convolution(8192, 4),), Recurrence(32, 16, 128, 128, is_delta=True)),
    Kind("kimi linear", (Convolution(4096, 4),), Recurrence(32, 32, 128, 128, Decay.KEY, is_delta=True)),
    Kind("mamba 2", (Convolution(10240, 4),), Recurrence(128, 8, 128, 64)),
    Kind("mamba 1", (Convolution(8192, 4),), Recurrence(1, 1, 16, 8192, Decay.ELEMENT)),
)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_texts_bits_are_its_own(kind: Kind) -> None:
    for seed in range(3):
        trace = Trace(Machine(Layer(kind, device="cuda"), num_snapshots=3, device="cuda"), seed).run(20)
        assert trace.wrong == []
        assert trace.error < 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", LARGE, ids=str)
def test_long_rows_of_real_models(kind: Kind, dtype: torch.dtype) -> None:
    layer, generator = Layer(kind, dtype, "cuda"), torch.Generator().manual_seed(0)
    inputs = layer.draw(300, generator)
    machine = Machine(layer, device="cuda")
    parts = machine.call(parts=[Piece(inputs[:170], 1), Piece(inputs[170:299], 1, 170)])
    last = machine.call([Piece(inputs[299:], 1, 299)])
    got, wanted = torch.cat([*parts, *last]), layer.textbook(inputs)
    assert torch.equal(got, machine.whole(inputs))
    off = (got.double() - wanted).abs() / (1 + wanted.abs())
    assert float(off.max()) < (1e-4 if dtype is torch.float32 else 2e-2)
