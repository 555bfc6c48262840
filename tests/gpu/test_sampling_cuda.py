"""Coupled sampling by slot on CUDA: the same tokens as on the CPU, exactly."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.kernels.random_slots import DTYPES, on_cuda
from support.kernels.rows import draft_rows, rows_params, sample_rows
from weft.ops.slots import SlotParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

INF, NAN = float("inf"), float("nan")


def parameters(n: int, vocab: int, seed: int = 0) -> tuple[SlotParams, Tensor]:
    """Slots with temperatures (some 0) and seeds; positions."""
    generator = torch.Generator().manual_seed(seed)
    temperature = torch.rand(n, generator=generator) * 2
    temperature[::4] = 0
    seeds = torch.randint(-(2**62), 2**62, (n,), generator=generator)
    params = rows_params(n, vocab, temperature=temperature, seed=seeds)
    return params, torch.randint(0, 2**40, (n,), generator=generator)


def assert_as_on_the_cpu(
    logits: Tensor, params: SlotParams, position: Tensor, d2t: Tensor | None = None
) -> None:
    cuda = torch.empty_strided(logits.size(), logits.stride(), dtype=logits.dtype, device="cuda")
    cuda.copy_(logits)
    if d2t is None:
        tokens = sample_rows(cuda, on_cuda(params), position.cuda())
        assert tokens.tolist() == sample_rows(logits, params, position).tolist()
    drafts = draft_rows(cuda, on_cuda(params), position.cuda(), None if d2t is None else d2t.cuda())
    assert drafts.tolist() == draft_rows(logits, params, position, d2t).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 3, 4, 31, 64, 2048, 20001, 128256])
@pytest.mark.parametrize("rows", [1, 7, 200])
def test_the_same_tokens_as_on_the_cpu(rows: int, vocab: int, dtype: torch.dtype) -> None:
    logits = (torch.randn(rows, vocab) * 3).to(dtype)
    logits[:, ::3] = -INF
    assert_as_on_the_cpu(logits, *parameters(rows, vocab))


@pytest.mark.parametrize("spread", [0.0, 0.01, 30.0])
def test_flat_and_steep_rows(spread: float) -> None:
    assert_as_on_the_cpu(torch.randn(64, 50_000) * spread, *parameters(64, 50_000))


@pytest.mark.parametrize("vocab", [1000, 32000])
def test_d2t(vocab: int) -> None:
    d2t = torch.randperm(4 * vocab)[:vocab] - torch.arange(vocab)
    assert_as_on_the_cpu(torch.randn(9, vocab), *parameters(9, 4 * vocab), d2t)


def test_misaligned_rows() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        storage = torch.randn(40, 6007).to(dtype)
        assert_as_on_the_cpu(storage[:, 3:6004], *parameters(40, 6001))


def test_ties_nan_infinities_and_empty_rows() -> None:
    logits = torch.full((8, 20_000), -INF)
    logits[1, [70, 19_000]] = 1.0
    logits[2] = NAN
    logits[3, [12_345, 17]] = INF
    logits[4] = -0.0
    logits[4, 9_000] = 0.0
    logits[5] = NAN
    logits[5, 7] = -3e38
    position = torch.arange(8)
    for temperature in (0.0, 1.0):
        params = rows_params(8, 20_000, temperature=temperature, seed=torch.arange(8))
        tokens = sample_rows(logits.cuda(), on_cuda(params), position.cuda()).tolist()
        assert tokens == sample_rows(logits, params, position).tolist()
        assert [tokens[i] for i in (0, 2, 3, 5)] == [-1, -1, 17, 7]


def test_no_columns() -> None:
    params, position = parameters(2, 1)
    tokens = sample_rows(torch.zeros(2, 0, device="cuda"), on_cuda(params), position.cuda())
    assert tokens.tolist() == [-1, -1]


def test_in_a_graph() -> None:
    logits = torch.randn(16, 32_000, device="cuda")
    params, start = parameters(16, 32_000)
    cuda, position = on_cuda(params), start.cuda()
    out = torch.zeros(16, dtype=torch.int64, device="cuda")

    def step() -> None:
        out.copy_(sample_rows(logits, cuda, position))
        position.add_(1)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    position.copy_(start)
    torch.cuda.synchronize()
    for i in range(5):
        graph.replay()
        torch.cuda.synchronize()
        assert out.tolist() == sample_rows(logits.cpu(), params, start + i).tolist()
