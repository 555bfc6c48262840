"""The attention kernels and a whole forward on a GPU, against textbook attention and the CPU."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from support.engine.random_model import random_model
from support.kernels.attention import FEW, MANY, MLA, OTHER_FEW, OTHER_MANY, Case, Inputs, beyond, error
from weft.models.base import PagedKV
from weft.models.config import ModelConfig
from weft.models.random_weights import RandomWeights
from weft.ops.attention import Rows, attend
from weft.registry import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 4e-2}
SHAPES = [(32, 8, 128), (6, 3, 32), (8, 1, 80), (4, 4, 256)]
OTHER_LARGE = (
    replace(MLA, heads=128, dim=576, value_dim=512),
    Case((), heads=64, kv_heads=8, dim=64, pairs=0, window=128, logits=True),
    Case((), heads=16, kv_heads=8, dim=256, pairs=0, softcap=50.0),
    Case((), heads=40, kv_heads=40, dim=96, value_dim=64, pairs=0),
)
CONFIG = ModelConfig("Qwen3ForCausalLM", 512, 256, 384, 3, 8, 2, 64, 2048, qk_norm=True)


def large_cases() -> list[Case]:
    """Rows as an engine has them, of each shape, width and dtype."""
    cases = []
    for (heads, kv_heads, dim), width, dtype in product(SHAPES, (1, 4, 9, 70), TOLERANCE):
        for lengths in ((width,), (3000, 70, 555, 71), (200,) * 33):
            cases.append(Case(lengths, width, heads, kv_heads, dim, dtype=dtype, norm=True))
    for case, width, dtype in product(OTHER_LARGE, (1, 4, 70), ("float16", "bfloat16")):
        cases.append(replace(case, lengths=(3000, 70, 555, 71), width=width, dtype=dtype))
    return cases


@pytest.mark.parametrize("case", [*FEW, *MANY, *OTHER_FEW, *OTHER_MANY, *large_cases()], ids=str)
def test_attention_matches_the_textbook(case: Case) -> None:
    assert error(case, attend, "cuda") < TOLERANCE[case.dtype]


@pytest.mark.parametrize("width", [2, 20])
def test_rows_do_not_write_beyond_their_table(width: int) -> None:
    assert beyond(attend, width, "cuda") == 0.0


@pytest.mark.parametrize(
    "case", [*(Case((), 4, *shape, norm=True) for shape in SHAPES), *OTHER_LARGE], ids=str
)
@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_a_querys_bits_are_its_own(case: Case, dtype: str) -> None:
    """Among others, alone, and read token by token."""
    case = replace(case, lengths=(3000, 70, 555, 71), width=4, dtype=dtype)
    inputs, alone, singly = (Inputs(case, "cuda") for _ in range(3))
    whole = inputs.run(attend).unflatten(0, (4, 4))
    new, rows = inputs.new_tokens().unflatten(0, (4, 4)), inputs.rows()
    for row in range(4):
        one = Rows(rows.page_table[row : row + 1], rows.base[row : row + 1], 4)
        assert torch.equal(attend(new[row].clone(), alone.layer, one, inputs.heads), whole[row])
    for token in range(4):
        one = replace(rows, width=1, offset=token)
        got = attend(new[:, token].contiguous(), singly.layer, one, inputs.heads)
        assert torch.equal(got, whole[:, token])


def test_forward_matches_the_cpu_eagerly_and_in_a_graph() -> None:
    models = [random_model(CONFIG, 1), random_model(CONFIG, 1, "cuda")]
    tokens = torch.randint(0, 512, (3, 300))
    logits = []
    with torch.inference_mode():
        for model in models:
            kv = PagedKV.for_model(model, 64, 16)
            table = torch.arange(1, 61, dtype=torch.int32, device=model.device).view(3, 20)
            here = tokens.to(model.device)
            base = torch.zeros(3, dtype=torch.int64, device=model.device)
            new = torch.zeros(3, 4, dtype=torch.int64, device=model.device)
            out = torch.zeros(3, 4, 512, device=model.device)

            def step(model=model, kv=kv, table=table, base=base, new=new, out=out) -> None:  # type: ignore[no-untyped-def]
                model.logits(model.forward(new, kv, Rows(table, base, 4)).last, out)

            run = step
            if model.device.type == "cuda":
                warm = torch.cuda.Stream()
                warm.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(warm):
                    step()
                torch.cuda.current_stream().wait_stream(warm)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=warm):
                    step()
                run = graph.replay  # type: ignore[assignment]
            model.forward(here[:, :200].contiguous(), kv, Rows(table, torch.zeros_like(base), 200))
            rows = []
            for start in (200, 204, 208):
                base.fill_(start)
                new.copy_(here[:, start : start + 4])
                run()
                rows.append(out.cpu())
            logits.append(torch.cat(rows, 1))
    torch.testing.assert_close(logits[1], logits[0], atol=2e-3, rtol=2e-3)


def test_weights_go_to_the_device_row_by_row() -> None:
    with torch.inference_mode():
        model = load("models", CONFIG.architecture)(CONFIG, RandomWeights(CONFIG, 1, "cuda"))
    assert model.embedding.is_cuda
    weight = model.layers[0].mlp.gate_up.weight
    assert weight.shape == (2 * 384, 256) and weight.is_contiguous()
