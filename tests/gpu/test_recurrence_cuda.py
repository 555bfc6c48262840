"""Layers with a state by slot on a GPU: random traces, and the sizes of real models."""

from __future__ import annotations

import pytest
import torch

from support.kernels.recurrence import KINDS, Kind, Layer, Machine, Piece, Trace
from weft.models.memory import Convolution, Decay, Recurrence
from weft.ops.gates import gated_norm
from weft.ops.linear import Norm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

LARGE = (
    Kind("qwen3-next", (Convolution(8192, 4),), Recurrence(32, 16, 128, 128, is_delta=True)),
    Kind("its gates", (), Recurrence(32, 16, 128, 128, is_delta=True), has_gates=True),
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_norms_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    x, gate = torch.randn(40, 32, 128).to(dtype), torch.randn(40, 2 * 4096).to(dtype)[:, 4096:]
    norm = Norm(torch.randn(128), 1e-6)
    wanted = gated_norm(x.float(), gate.float(), norm)
    live = torch.tensor([33], device="cuda")
    given = x.cuda(), gate.cuda(), Norm(norm.weight.cuda(), norm.eps)
    got = gated_norm(*given, live)[:33]
    off = (got.float().cpu() - wanted[:33]).abs() / (1 + wanted[:33].abs())
    assert float(off.max()) < (1e-5 if dtype is torch.float32 else 1e-2)
    assert torch.equal(got[5], gated_norm(given[0][5:6], given[1][5:6], given[2])[0])
