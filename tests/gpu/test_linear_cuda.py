"""A decoder's products, and the rows between them, on a GPU against plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support.kernels.linear import CASES, Case, Inputs
from weft.ops.activation import SWIGLU, Activation, Function
from weft.ops.linear import FEW_ROWS, Linear, Norm
from weft.ops.rows import embed, join_norms, take_rows
from weft.runtime.cuda import cuda_runtime
from weft.runtime.dump import dump_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
LAYER = (
    Case(6144, 4096, norm=True),
    Case(4096, 4096, residual=True),
    Case(28672, 4096, norm=True, activation=SWIGLU, gated=True),
    Case(4096, 14336, residual=True),
    Case(4608, 3584, norm=True, bias=True),
    Case(128, 2880, bias=True, wide_out=True),
    Case(4608, 3584, norm=True, added=True, wide_norms=True),
    Case(28672, 3840, norm=True, added=True, activation=Activation(Function.GELU_TANH), gated=True),
)


def cases() -> list[Case]:
    dtypes = ("float32", "float16", "bfloat16")
    small = [replace(case, dtype=dtype) for case in CASES for dtype in dtypes]
    large = [replace(case, rows=rows, dtype="bfloat16") for case in LAYER for rows in (1, 4, 16, 17, 64)]
    return list(dict.fromkeys([*small, *large]))


@pytest.mark.parametrize("case", cases(), ids=str)
def test_products_match_plain_torch(case: Case) -> None:
    inputs = Inputs(case, "cuda")
    assert inputs.error(inputs.run()) < 2 * case.tolerance
    if inputs.added is not None:
        wanted = inputs.wanted_total()
        error = (inputs.added.total - wanted).abs().max() / wanted.abs().max()
        assert error < 2 * case.tolerance


@pytest.mark.parametrize("case", LAYER, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_rows_bits_are_its_own(case: Case, dtype: str) -> None:
    """Again, alone, and at another place."""
    inputs = Inputs(replace(case, rows=FEW_ROWS, dtype=dtype), "cuda")
    linear = inputs.linear()

    def run(rows: list[int]) -> torch.Tensor:
        residual = None if inputs.residual is None else inputs.residual[rows]
        x, added = inputs.x[rows], inputs.added
        if added is not None:
            added = replace(added, rows=added.rows[rows], total=torch.empty_like(x))
        return linear(x, inputs.norm, residual=residual, added=added)

    every = list(range(FEW_ROWS))
    whole = run(every)
    assert torch.equal(run(every), whole)
    assert torch.equal(torch.cat([run([row]) for row in every]), whole)
    assert torch.equal(run(every[::-1]).flip(0), whole)


class Chain:
    """Many products, each of which may start before the one before it is done, after a copy: one of torch's kernels, or
    where `by_copy_engine` no kernel."""

    def __init__(self, by_copy_engine: bool) -> None:
        self._inputs = Inputs(Case(2048, 2048, rows=4, norm=True, residual=True, dtype="bfloat16"), "cuda")
        self._linear = Linear(self._inputs.weight / 8)
        assert self._inputs.residual is not None
        self._start = self._inputs.residual.contiguous() if by_copy_engine else self._inputs.residual
        self.x = torch.empty(4, 2048, dtype=torch.bfloat16, device="cuda")

    def __call__(self) -> None:
        self.x.copy_(self._start)
        for _ in range(32):
            y = self._linear(self.x, self._inputs.norm)
            self._linear(y, residual=self.x, out=self.x)


@pytest.mark.parametrize("by_copy_engine", [False, True])
def test_a_chain_of_products_is_the_same_in_a_graph(by_copy_engine: bool) -> None:
    chain, runtime = Chain(by_copy_engine), cuda_runtime()
    torch.cuda.synchronize()
    stream = runtime.stream()
    stream.launch(chain)
    stream.synchronize()
    wanted = chain.x.clone()
    with runtime.capture(stream) as graph:
        stream.launch(chain)
    for _ in range(20):
        chain.x.zero_()
        torch.cuda.synchronize()
        graph.replay()
        stream.synchronize()
        assert torch.equal(chain.x, wanted)
    graph.close()


def test_a_graph_of_such_a_chain_can_be_listed() -> None:
    pytest.importorskip("cuda.bindings")
    chain, runtime = Chain(by_copy_engine=False), cuda_runtime()
    stream = runtime.stream()
    stream.launch(chain)
    stream.synchronize()
    dump = dump_graph(runtime, stream, lambda: stream.launch(chain))
    assert [kind for kind, _ in dump.nodes] == ["kernel"] * 65
    assert len(dump.edges) == 64


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("size", [64, 1500, 4096])
def test_rows_match_the_cpu(dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(2)
    weight, hidden = (torch.randn(n, size, generator=generator).to(dtype).float() for n in (50, 6))
    norm, x = torch.rand(size, generator=generator).to(dtype).float(), torch.randn(3, 4, size)
    tokens, index = torch.tensor([3, 49, -1, 50, 0, 1 << 40]), torch.tensor([2, 0, 3])
    results = []
    for device, kind in (("cpu", torch.float32), ("cuda", dtype)):
        w, h, xs = (t.to(device, kind) for t in (weight, hidden, x.to(dtype)))
        ids, first = tokens.to(device), Norm(norm.to(device, kind), 1e-5)
        results.append(
            [
                embed(w, ids, kind),
                first(h),
                join_norms(w, ids, first, h, first),
                take_rows(xs, index.to(device), xs.new_empty(3, size)),
            ]
        )
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got.float().cpu(), wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
