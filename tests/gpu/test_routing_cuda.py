"""Routers of mixtures of experts on a GPU against sorting in float64, and in a graph with the experts."""

from __future__ import annotations

import pytest
import torch

from support.experts import layer_of
from support.kernels.routing import CHOICES, by_sorting, logits_of
from weft.ops.activation import Activation, Function
from weft.ops.linear import Norm
from weft.ops.routing import choose

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CHOICES)
def test_values_are_those_of_sorting(name: str, dtype: torch.dtype) -> None:
    choice = CHOICES[name][1]
    for rows in (1, 9, 300):
        logits, bias = logits_of(name, rows)
        logits, x = logits.to(dtype), torch.randn(rows, 2048).to(dtype)
        norm = Norm(torch.rand(2048), 1e-5)
        index, weights = by_sorting(logits, choice, bias)
        on_gpu = None if bias is None else bias.cuda()
        given = logits.cuda(), choice, on_gpu, x.cuda(), Norm(norm.weight.cuda(), norm.eps)
        chosen = choose(*given)
        assert torch.equal(chosen.experts.cpu(), index)
        torch.testing.assert_close(chosen.weights.cpu().double(), weights, rtol=5e-6, atol=1e-8)
        tolerance = 1e-5 if dtype is torch.float32 else 3e-2
        torch.testing.assert_close(chosen.rows.float().cpu(), norm(x.float()), rtol=tolerance, atol=tolerance)
        alone = choose(given[0][:1], choice, on_gpu, given[3][:1], given[4])
        assert all(torch.equal(one, of_many[:1]) for one, of_many in zip(alone, chosen, strict=True))


def test_a_graph_routes_and_adds_to_the_residual_stream() -> None:
    name = "mixtral"
    choice, norm = CHOICES[name][1], Norm(torch.rand(128, dtype=torch.bfloat16, device="cuda"), 1e-5)
    experts = layer_of(8, 256, 128, Activation(Function.SILU), torch.bfloat16).on("cuda").packed()
    live = torch.tensor([40], device="cuda")
    logits, x = logits_of(name, 40)[0].cuda(), torch.randn(40, 128, device="cuda").bfloat16()

    def step() -> None:
        rows, index, weights = choose(logits, choice, None, x, norm, live)
        experts(rows, index, weights, live, x, residual=x)

    start = x.clone()
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for count, seed in ((40, 1), (0, 2), (8, 3)):
        logits.copy_(logits_of(name, 40, seed)[0])
        live.fill_(count)
        x.copy_(start)
        step()
        expected = x.clone()
        x.copy_(start)
        graph.replay()
        assert torch.equal(x, expected) and torch.equal(x[count:], start[count:])
        assert (x[:count] != start[:count]).any() == (count > 0)
