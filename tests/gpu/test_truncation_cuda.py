"""Truncation by slot on CUDA: the same tokens as on the CPU, exactly.

The floors themselves, which no operation gives, are compared by `cpp/kernels/test_sampling_kernels.cpp`.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.kernels.random_slots import DTYPES, on_cuda
from support.kernels.rows import rows_params, sample_rows
from weft.ops.slots import SlotParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

INF, NAN = float("inf"), float("nan")


def parameters(n: int, vocab: int) -> SlotParams:
    """Slots with temperatures (some 0), top_k, top_p and min_p (some neutral)."""
    g = torch.Generator().manual_seed(n)
    temperature = torch.rand(n, generator=g) * 2
    temperature[::7] = 0
    top_k = torch.randint(-1, vocab + 2, (n,), generator=g).int()
    top_k[::3] = min(vocab, 50)
    top_k[1::3] = 0
    top_p, min_p = torch.rand(n, generator=g), torch.rand(n, generator=g) * 0.2
    top_p[::4] = 1
    min_p[::2] = 0
    seed = torch.arange(n)
    return rows_params(n, vocab, temperature=temperature, seed=seed, top_k=top_k, top_p=top_p, min_p=min_p)


def assert_as_on_the_cpu(logits: Tensor, params: SlotParams) -> None:
    """At a few positions, which show more of what stays."""
    position = torch.arange(len(logits)) * 30
    tokens = sample_rows(logits.cuda(), on_cuda(params), position.cuda(), 8)
    assert tokens.tolist() == sample_rows(logits, params, position, 8).tolist()
    strided = torch.empty_strided(logits.size(), logits.stride(), dtype=logits.dtype, device="cuda")
    strided.copy_(logits)
    tokens = sample_rows(strided, on_cuda(params), position.cuda())
    assert tokens.tolist() == sample_rows(logits, params, position).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 3, 64, 2048, 20001, 128256])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_the_same_tokens_as_on_the_cpu(rows: int, vocab: int, dtype: torch.dtype) -> None:
    logits = (torch.randn(rows, vocab) * 3).to(dtype)
    logits[:, ::3] = -INF
    logits[:, 5::91] = NAN
    assert_as_on_the_cpu(logits, parameters(rows, vocab))


@pytest.mark.parametrize("spread", [0.0, 0.01, 30.0])
def test_flat_and_steep_rows(spread: float) -> None:
    assert_as_on_the_cpu(torch.randn(64, 50_000) * spread, parameters(64, 50_000))


def test_misaligned_rows() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        assert_as_on_the_cpu(torch.randn(40, 6007).to(dtype)[:, 3:6004], parameters(40, 6001))


def test_infinities_and_empty_rows() -> None:
    logits = torch.full((8, 1000), -INF)
    logits[1:3, 7] = INF
    logits[3] = NAN
    logits[4, ::2] = 3e38
    assert_as_on_the_cpu(logits, parameters(8, 1000))


def test_in_a_graph() -> None:
    logits = torch.randn(16, 32_000, device="cuda")
    params, position = parameters(16, 32_000), torch.arange(16)
    cuda, where = on_cuda(params), position.cuda()
    out = torch.zeros(16 * 8, dtype=torch.int64, device="cuda")

    def step() -> None:
        out.copy_(sample_rows(logits, cuda, where, 8))
        logits.mul_(1.5)

    stream, start = torch.cuda.Stream(), logits.cpu()
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    logits.copy_(start)
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert out.tolist() == sample_rows(start, params, position, 8).tolist()
        start = start * 1.5
