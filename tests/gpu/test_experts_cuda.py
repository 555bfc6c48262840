"""Mixtures of experts on a GPU against one product after another."""

from __future__ import annotations

import pytest
import torch

from support.experts import Layer, layer_of, routed
from weft.ops.activation import Activation, Function

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

SILU = Activation(Function.SILU)
CLAMPED = Activation(Function.SILU, slope=1.702, limit=7.0, shift=1.0)
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.cpu().double() - expected).abs().max() / expected.abs().max())


def on_gpu(given: Given, dtype: torch.dtype) -> Given:
    x, index, weights = given
    return x.to("cuda", dtype), index.cuda(), weights.cuda()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=lambda dtype: str(dtype).removeprefix("torch."))
@pytest.mark.parametrize(
    "layer",
    [
        lambda dtype: layer_of(8, 1024, 512, SILU, dtype),
        lambda dtype: layer_of(32, 360, 360, CLAMPED, dtype, has_bias=True),
        lambda dtype: layer_of(128, 96, 256, Activation(Function.RELU_SQUARED), dtype, gated=False),
    ],
    ids=["8", "32-clamped", "128-without-gates"],
)
def test_values_are_those_of_one_product_after_another(layer: object, dtype: torch.dtype) -> None:
    assert callable(layer)
    made: Layer = layer(dtype)
    packed, (experts, hidden, _) = made.on("cuda").packed(), made.down.shape
    for rows in (1, 9, 65, 600):
        x, index, weights = routed(rows, experts, 4, hidden)
        x = x.to(dtype)
        actual = packed(*on_gpu((x, index, weights), dtype))
        assert error(actual, made(x, index, weights)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_rows_bits_are_its_own_among_few(dtype: torch.dtype) -> None:
    packed = layer_of(64, 768, 512, SILU, dtype).on("cuda").packed()
    x, index, weights = on_gpu(routed(32, 64, 8, 512), dtype)
    whole = packed(x, index, weights)
    assert torch.equal(packed(x, index, weights), whole)
    alone = [packed(x[n, None], index[n, None], weights[n, None]) for n in range(len(x))]
    assert torch.equal(torch.cat(alone), whole)
    assert torch.equal(packed(x.flip(0), index.flip(0), weights.flip(0)).flip(0), whole)


def test_a_graph_replays_with_other_choices_and_numbers_of_rows() -> None:
    packed = layer_of(16, 256, 128, SILU, torch.bfloat16).on("cuda").packed()
    given = on_gpu(routed(40, 16, 4, 128), torch.bfloat16)
    live, out = torch.tensor([40], device="cuda"), torch.zeros(40, 128, dtype=torch.bfloat16, device="cuda")
    packed(*given, live, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        packed(*given, live, out)
    for count, seed in ((40, 1), (0, 2), (8, 3), (33, 4)):
        for mine, new in zip(given, on_gpu(routed(40, 16, 4, 128, seed), torch.bfloat16), strict=True):
            mine.copy_(new)
        live.fill_(count)
        out.zero_()
        graph.replay()
        expected = torch.zeros_like(out)
        packed(*given, live, expected)
        assert torch.equal(out, expected) and not out[count:].any() and out[:count].any() == (count > 0)
