"""Products whose parts round their input rows in different ways: each part has the bits that it has alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from support.activations import activations_of
from support.experts import routed
from support.quantized import random_blocks
from weft import _core
from weft.ops.activation import Activation, Function
from weft.ops.experts import Experts
from weft.ops.formats import Activations, Format
from weft.ops.linear import Added, Linear, Norm
from weft.ops.packing import PackingThreads
from weft.ops.quantized import Matrix

INPUTS = 512
ROWS = (1, 2, 5, 8, 15, 17, 37, 49, 100, 150)
IS_PLAIN = _core.instruction_set() == "plain"
INT8 = Activations.FLOAT32 if IS_PLAIN else Activations.INT8


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def made(
    matrices: Sequence[Matrix],
    bias: Tensor | None = None,
    wanted: Activations | None = None,
    **options: object,
) -> Linear:
    """A product, as a model whose products shall round rows as `wanted` makes it."""
    with PackingThreads(wanted):
        return Linear(matrices, bias, **options)  # type: ignore[arg-type]


def dense(outputs: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(outputs, INPUTS, generator=torch.Generator().manual_seed(5)).to(dtype)


MIXED = {
    "float16": (Activations.FLOAT32, lambda: dense(70, torch.float16)),
    "bfloat16": (Activations.BFLOAT16, lambda: dense(70, torch.bfloat16)),
    "fp8": (Activations.FLOAT32, lambda: random_blocks(Format.FP8, 70, INPUTS)),
}


@pytest.mark.parametrize("kind", MIXED)
def test_each_part_has_the_bits_that_it_has_alone(kind: str, threads: int) -> None:
    rounding, make = MIXED[kind]
    wanted = Activations.BFLOAT16 if kind == "bfloat16" else None
    parts = [random_blocks(Format.Q4_K, 90, INPUTS), make(), random_blocks(Format.Q6_K, 33, INPUTS)]
    bias, norm = torch.randn(193), Norm(torch.rand(INPUTS) + 0.5, 1e-5)
    options = {"activation": Activation(Function.GELU), "scale": 0.7, "softcap": 2.0}
    joined = made(parts, bias, wanted, **options)
    assert activations_of(joined) == [INT8, rounding, INT8]
    alone = [
        made([part], some, wanted, **options)
        for part, some in zip(parts, bias.split((90, 70, 33)), strict=True)
    ]
    for rows in ROWS:
        x, residual = torch.randn(rows, INPUTS + 3)[:, 1:-2], torch.randn(rows, 193)
        for given in (None, norm):
            expected = torch.cat([linear(x, given) for linear in alone], 1)
            assert torch.equal(joined(x, given), expected)
            assert torch.equal(joined(x, given, residual=residual), expected + residual)
        added, totals = torch.randn(rows, INPUTS), torch.empty(2, rows, INPUTS)
        out = joined(x, norm, added=Added(added, norm, totals[0]))
        of_each = [linear(x, norm, added=Added(added, norm, totals[1])) for linear in alone]
        assert torch.equal(out, torch.cat(of_each, 1)) and torch.equal(*totals)


@pytest.mark.parametrize("kind", MIXED)
def test_gates_and_ups_round_rows_in_their_own_ways(kind: str, threads: int) -> None:
    rounding, make = MIXED[kind]
    wanted = Activations.BFLOAT16 if kind == "bfloat16" else None
    bias = torch.randn(140)
    for parts in (
        [random_blocks(Format.Q5_K, 70, INPUTS), make()],
        [make(), random_blocks(Format.Q8_0, 70, INPUTS)],
    ):
        joined = made(parts, bias, wanted, activation=Activation(Function.RELU), gated=True)
        assert sorted(activations_of(joined)) == sorted([INT8, rounding])
        alone = [made([part], some, wanted) for part, some in zip(parts, bias.split(70), strict=True)]
        for rows in ROWS:
            x = torch.randn(rows, INPUTS)
            gates, ups = (linear(x) for linear in alone)
            assert torch.equal(joined(x), gates.clamp(min=0) * ups)


def test_four_parts_read_rows_in_three_ways(threads: int) -> None:
    """A row has the same bits in any batch, and with only some rows live."""
    parts = [
        dense(20, torch.bfloat16),
        random_blocks(Format.INT4_128, 64, INPUTS),
        random_blocks(Format.FP8, 30, INPUTS),
        random_blocks(Format.Q8_0, 3, INPUTS),
    ]
    joined, x = made(parts, None, Activations.BFLOAT16), torch.randn(200, INPUTS)
    assert activations_of(joined) == [Activations.BFLOAT16, INT8, Activations.FLOAT32, INT8]
    whole = joined(x)
    for first, count in ((0, 1), (5, 3), (20, 16), (7, 17), (30, 48), (50, 100)):
        assert torch.equal(joined(x[first : first + count]), whole[first : first + count])
    out = torch.full((200, 117), -7.0)
    joined(x, out=out, live=torch.tensor([150]))
    assert torch.equal(out[:150], whole[:150]) and (out[150:] == -7).all()


def test_float32_is_for_all_parts() -> None:
    parts = [random_blocks(Format.Q4_K, 90, INPUTS), dense(20, torch.bfloat16)]
    with PackingThreads(Activations.FLOAT32):
        assert activations_of(Linear(parts)) == [Activations.FLOAT32] * 2
    exact = Linear(parts, activations=Activations.FLOAT32)
    assert activations_of(exact) == [Activations.FLOAT32] * 2
    plain = Linear([parts[0].dequantized(), parts[1].float()])
    x = torch.randn(20, INPUTS)
    assert torch.equal(exact(x), plain(x))


def test_experts_gates_and_ups_round_rows_in_their_own_ways(threads: int) -> None:
    experts, hidden, inner = 5, INPUTS, 256
    gates = random_blocks(Format.Q4_K, experts * inner, hidden).unflatten(0, (experts, inner))
    ups = dense(experts * inner, torch.float16).view(experts, inner, hidden)
    downs = random_blocks(Format.Q6_K, experts * hidden, inner).unflatten(0, (experts, hidden))
    mixture = Experts(gates, ups, downs, Activation(Function.RELU))
    for rows in (1, 3, 40, 200):
        x, index, weights = routed(rows, experts, 2, hidden)
        out = mixture(x, index, weights)
        for row in range(0, rows, 7):
            expected = torch.zeros(hidden)
            for expert, weight in zip(index[row].tolist(), weights[row], strict=True):
                one = x[row : row + 1]
                gate, up = Linear(gates[expert])(one), Linear(ups[expert])(one)
                expected += weight * Linear(downs[expert])(gate.clamp(min=0) * up)[0]
            torch.testing.assert_close(out[row], expected, rtol=0, atol=1e-6 * expected.abs().max().item())
            assert torch.equal(
                mixture(x[row : row + 1], index[row : row + 1], weights[row : row + 1])[0], out[row]
            )
