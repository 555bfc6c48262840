"""Products, experts and embeddings of quantised weights on a GPU against plain torch with their numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support.experts import Layer, routed
from support.kernels.linear import Case, Inputs
from support.quantized import QUANTIZED, random_blocks
from weft.ops.activation import SWIGLU, Activation, Function
from weft.ops.experts import Experts
from weft.ops.formats import Format
from weft.ops.linear import FEW_ROWS, Linear, Norm
from weft.ops.rows import embed, embeddable, join_norms
from weft.runtime.cuda import cuda_runtime

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

by_kind = pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
DTYPES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
LAYER = (
    Case(6144, 4096, norm=True, bias=True),
    Case(4096, 4096, residual=True),
    Case(9216, 2048, norm=True, activation=SWIGLU, gated=True, scale=1e-3),
    Case(2048, 9216, norm=True, added=True, activation=Activation(Function.GELU), softcap=2.0),
)


def quantised(kind: Format, case: Case) -> tuple[Linear, Inputs]:
    """A product with random blocks of a format, and its inputs with the same numbers as a weight."""
    inputs, matrix = Inputs(case, "cuda"), random_blocks(kind, case.outputs, case.inputs)
    inputs.weight = matrix.dequantized().cuda()
    product = Linear(
        matrix.to("cuda"), inputs.bias, activation=case.activation, gated=case.gated, scale=case.scale,
        softcap=case.softcap,
    )  # fmt: skip
    return product, inputs


@by_kind
@pytest.mark.parametrize("case", LAYER, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_products_match_plain_torch(kind: Format, case: Case, dtype: str) -> None:
    """weft's kernels multiply few rows, and torch's multiply many by widened weights."""
    for rows in (1, FEW_ROWS, 40):
        product, inputs = quantised(kind, replace(case, rows=rows, dtype=dtype))
        assert inputs.error(inputs.run(product)) < 2 * inputs.case.tolerance


@by_kind
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_rows_bits_are_its_own(kind: Format, dtype: str) -> None:
    """Again, alone, and at another place."""
    product, inputs = quantised(kind, replace(LAYER[2], rows=FEW_ROWS, dtype=dtype))
    every = list(range(FEW_ROWS))

    def run(rows: list[int]) -> torch.Tensor:
        return product(inputs.x[rows], inputs.norm)

    whole = run(every)
    assert torch.equal(run(every), whole)
    assert torch.equal(torch.cat([run([row]) for row in every]), whole)
    assert torch.equal(run(every[::-1]).flip(0), whole)


@pytest.mark.parametrize("rows", [3, 40])
@pytest.mark.parametrize("gated", [False, True])
def test_formats_may_differ_in_a_product(gated: bool, rows: int) -> None:
    case = Case(1024, 2048, rows=rows, norm=True, dtype="bfloat16")
    if gated:
        case = replace(case, activation=SWIGLU, gated=True, scale=1e-3)
    inputs = Inputs(case, "cuda")
    parts = [random_blocks(kind, 512, 2048) for kind in (Format.Q4_K, Format.Q6_K)]
    inputs.weight = torch.cat([part.dequantized() for part in parts]).cuda()
    product = Linear(
        [part.to("cuda") for part in parts], activation=case.activation, gated=gated, scale=case.scale
    )
    assert inputs.error(inputs.run(product)) < 2 * case.tolerance


@by_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_embeddings_are_exact(kind: Format, dtype: torch.dtype) -> None:
    matrix = random_blocks(kind, 500, 2048)
    tokens, hidden = torch.tensor([3, 499, -1, 500], device="cuda"), torch.randn(4, 2048).to("cuda", dtype)
    weight, norm = embeddable(matrix.to("cuda")), Norm(torch.rand(2048).to("cuda", dtype), 1e-6)
    wanted = matrix.dequantized()[[3, 499, 0, 499]].cuda()
    assert torch.equal(embed(weight, tokens, dtype), wanted.to(dtype))
    joined = join_norms(weight, tokens, norm, hidden, norm)
    normed = torch.nn.functional.rms_norm(wanted.double(), (2048,), norm.weight.double(), 1e-6)
    assert (joined[:, :2048].double() - normed).abs().max() < DTYPES[dtype]


@by_kind
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_experts_match_one_product_after_another(kind: Format, dtype: torch.dtype) -> None:
    number, inner, hidden = 16, 256, 512
    gate, up, down = (
        [random_blocks(kind, *sizes, seed=seed + expert) for expert in range(number)]
        for seed, sizes in ((0, (inner, hidden)), (100, (inner, hidden)), (200, (hidden, inner)))
    )
    layer = Layer(*(torch.stack([m.dequantized() for m in part]) for part in (gate, up, down)), SWIGLU)
    experts = Experts(*([matrix.to("cuda") for matrix in part] for part in (gate, up, down)), SWIGLU)
    for rows in (1, 9, 200):
        x, index, weights = routed(rows, number, 4, hidden)
        x = (x * 0.01).to(dtype)  # float16 holds the results
        wanted = layer(x, index, weights)
        got = experts(x.cuda(), index.cuda(), weights.cuda()).cpu().double()
        assert (got - wanted).abs().max() < DTYPES[dtype] * wanted.abs().max()


def test_many_rows_are_the_same_in_a_graph() -> None:
    """The memory for widened weights is the graph's."""
    product, inputs = quantised(Format.Q4_K, replace(LAYER[0], rows=40, dtype="bfloat16"))
    runtime = cuda_runtime()
    out = torch.empty(40, LAYER[0].outputs, dtype=torch.bfloat16, device="cuda")

    def run() -> None:
        product(inputs.x, inputs.norm, out=out)

    torch.cuda.synchronize()
    stream = runtime.stream()
    stream.launch(run)
    stream.synchronize()
    wanted = out.clone()
    with runtime.capture(stream) as graph:
        stream.launch(run)
    for _ in range(3):
        out.zero_()
        torch.cuda.synchronize()
        graph.replay()
        stream.synchronize()
        assert torch.equal(out, wanted)
    graph.close()
