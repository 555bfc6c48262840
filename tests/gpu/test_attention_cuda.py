"""The attention kernels and a whole forward on a GPU, against the CPU's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.engine.random_model import random_model
from weft.models.base import KVIndex, PagedKV
from weft.models.config import ModelConfig, Rope
from weft.models.weights import RandomWeights
from weft.ops.attention import kv_plan, paged_attention, rotate_write_
from weft.ops.silu_mul import silu_mul
from weft.registry import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
SHAPES = [(32, 8, 128), (6, 3, 32), (8, 1, 80), (4, 4, 256)]
CONFIG = ModelConfig("Qwen3ForCausalLM", 512, 256, 384, 3, 8, 2, 64, 2048, qk_norm=True)


def attend(
    device: str, dtype: torch.dtype, lengths: list[int], width: int, shape: tuple[int, int, int]
) -> Tensor:
    """The three ops on random history and tokens, the same on every device."""
    heads, kv_heads, dim = shape
    generator = torch.Generator().manual_seed(4)
    batch, columns = len(lengths), -(-max(lengths) // 16)
    pages = torch.randperm(batch * columns, generator=generator) + 1
    cache = torch.randn(1 + batch * columns, 16, 2, kv_heads, dim, generator=generator).to(device, dtype)
    table = pages.view(batch, columns).int().to(device)
    positions = torch.stack([torch.arange(n - width, n) for n in lengths]).to(device)
    qkv = torch.randn(batch * width, (heads + 2 * kv_heads) * dim, generator=generator).to(device, dtype)
    norms = [torch.rand(dim, generator=generator).add(0.5).to(device, dtype) for _ in range(2)]
    slots, rotary = kv_plan(table, positions, Rope().table(dim, max(lengths), device), 16)
    rotate_write_(qkv, cache, slots, rotary, heads, norms[0], norms[1], 1e-6)
    q = qkv.narrow(1, 0, heads * dim).view(batch, width, heads, dim)
    return paged_attention(q, cache, table, positions, dim**-0.5).float().cpu()


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("width", [1, 4, 9, 70])
def test_attention_matches_the_cpu(dtype: torch.dtype, shape: tuple[int, int, int], width: int) -> None:
    for lengths in ([width], [3000, 70, 555, 71], [200] * 33):
        wanted = attend("cpu", torch.float32, lengths, width, shape)
        got = attend("cuda", dtype, lengths, width, shape)
        torch.testing.assert_close(got, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_silu_mul_matches_the_cpu(dtype: torch.dtype) -> None:
    gate_up = torch.randn(7, 2 * 3000)
    got = silu_mul(gate_up.to("cuda", dtype)).float().cpu()
    torch.testing.assert_close(got, silu_mul(gate_up), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_forward_matches_the_cpu_eagerly_and_in_a_graph() -> None:
    models = [random_model(CONFIG, 1), random_model(CONFIG, 1, "cuda")]
    tokens = torch.randint(0, 512, (3, 300))
    logits = []
    with torch.inference_mode():
        for model in models:
            kv = PagedKV.for_model(model, 64, 16)
            table = torch.arange(1, 61, dtype=torch.int32, device=model.device).view(3, 20)
            here = tokens.to(model.device)
            positions = torch.zeros(3, 4, dtype=torch.int64, device=model.device)
            new = torch.zeros(3, 4, dtype=torch.int64, device=model.device)
            out = torch.zeros(3, 4, 512, device=model.device)

            def step(model=model, kv=kv, table=table, positions=positions, new=new, out=out) -> None:  # type: ignore[no-untyped-def]
                out.copy_(model.logits(model.forward(new, kv, KVIndex.at(table, positions)).last))

            run = step
            if model.device.type == "cuda":
                warm = torch.cuda.Stream()
                warm.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(warm):
                    step()
                torch.cuda.current_stream().wait_stream(warm)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    step()
                run = graph.replay  # type: ignore[assignment]
            prompt = torch.arange(200, device=model.device).expand(3, -1)
            model.forward(here[:, :200], kv, KVIndex.at(table, prompt))
            rows = []
            for start in (200, 204, 208):
                positions.copy_(torch.arange(start, start + 4).expand(3, -1))
                new.copy_(here[:, start : start + 4])
                run()
                rows.append(out.cpu())
            logits.append(torch.cat(rows, 1))
    torch.testing.assert_close(logits[1], logits[0], atol=2e-3, rtol=2e-3)


def test_weights_go_to_the_device_in_the_layout_that_cublas_reads() -> None:
    with torch.inference_mode():
        model = load("models", CONFIG.architecture)(CONFIG, RandomWeights(CONFIG, 1, "cuda"))
    assert model.embedding.is_cuda
    assert not model.layers[0].mlp.gate_up.weight.is_contiguous(), "a view of [out, in]"
