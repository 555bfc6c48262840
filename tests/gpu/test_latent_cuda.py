"""Products of multi-head latent attention on a GPU against float64, and in a graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.latent import LatentLayer, Sizes
from weft.ops.latent import LatentQueries, LatentValues
from weft.ops.linear import Norm

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

CASES = (
    Sizes(128, 1536, 128, 64, 512, 128, torch.bfloat16),
    Sizes(20, 768, 192, 64, 512, 256, torch.bfloat16),
    Sizes(16, 0, 128, 64, 512, 128, torch.float16),
    Sizes(5, 600, 50, 6, 70, 33, torch.float32),
)
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


class OnGpu:
    """The operations of a layer on the GPU. Norms have the dtype of the weights."""

    def __init__(self, sizes: Sizes) -> None:
        self.layer = layer = LatentLayer(sizes)

        def norm(norm: Norm | None) -> Norm | None:
            return None if norm is None else Norm(norm.weight.to(sizes.dtype).cuda(), norm.eps)

        kv_norm = norm(layer.kv_norm)
        assert kv_norm is not None
        q_up = None if layer.q_up is None else layer.q_up.cuda()
        self.queries = LatentQueries(q_up, layer.k_up.cuda(), norm(layer.q_norm), kv_norm, sizes.rotated)
        self.values = LatentValues(layer.v_up.cuda())

    def inputs(self, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        dtype = self.layer.sizes.dtype
        return self.layer.rows(count, seed).to(dtype), self.layer.attended(count, seed).to(dtype)


@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_products_are_those_in_float64(sizes: Sizes) -> None:
    made, layer = OnGpu(sizes), LatentLayer(sizes)
    for norm in (layer.q_norm, layer.kv_norm):
        if norm is not None:
            norm.weight.copy_(norm.weight.to(sizes.dtype))
    for count in (1, 16, 17, 300):
        x, attended = made.inputs(count)
        for got, wanted in (
            (made.queries(x.cuda()), layer.expected_queries(x)),
            (made.values(attended.cuda()), layer.expected_values(attended)),
        ):
            error = (got.cpu().double() - wanted).abs().max() / wanted.abs().max()
            assert error < TOLERANCE[sizes.dtype], count


@pytest.mark.parametrize("sizes", CASES, ids=str)
def test_a_row_has_the_same_bits_alone_and_among_few(sizes: Sizes) -> None:
    made = OnGpu(sizes)
    x, attended = (rows.cuda() for rows in made.inputs(16))
    for product, rows in ((made.queries, x), (made.values, attended)):
        together = product(rows)
        for _ in range(20):  # whichever program of a head is last
            assert torch.equal(product(rows), together)
        for row in (0, 9, 15):
            assert torch.equal(product(rows[row, None])[0], together[row])


@pytest.mark.parametrize("sizes", CASES[:3], ids=str)
def test_a_graph_computes_its_live_rows(sizes: Sizes) -> None:
    made = OnGpu(sizes)
    live = torch.tensor([16], device="cuda")
    x, attended = (rows.cuda() for rows in made.inputs(16))

    def step() -> tuple[Tensor, Tensor]:
        return made.queries(x, live), made.values(attended, live)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made_in_graph = step()
    for count, seed in ((16, 1), (0, 2), (7, 3)):
        for rows, given in zip((x, attended), made.inputs(16, seed), strict=True):
            rows.copy_(given)
            rows[count:] = float("nan")
        live.fill_(count)
        for out in made_in_graph:
            out.fill_(7)
        graph.replay()
        for out, wanted in zip(made_in_graph, step(), strict=True):
            assert torch.equal(out[:count], wanted[:count])
            assert bool((out[count:] == 7).all())
