"""Quantised matrices whose inputs are in an order of their own: products have the bits of products with inputs that
are put in that order before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from support.quantized import random_blocks
from weft import _core
from weft.errors import InputError
from weft.ops.activation import SWIGLU, Activation, Function
from weft.ops.experts import Experts
from weft.ops.formats import Activations, Format
from weft.ops.latent import LatentQueries
from weft.ops.linear import Linear, Norm
from weft.ops.packing import pack_matrix
from weft.ops.quantized import Quantized
from weft.ops.rows import embed

INPUTS = 512
ROWS = (1, 2, 5, 8, 15, 17, 37, 49, 100, 300)
ROUNDINGS = [
    Activations.FLOAT32,
    pytest.param(
        Activations.INT8, marks=pytest.mark.skipif(_core.instruction_set() == "plain", reason="needs vectors")
    ),
]
by_rounding = pytest.mark.parametrize("rounding", ROUNDINGS)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def shuffled(inputs: int, seed: int = 0) -> torch.Tensor:
    return torch.randperm(inputs, generator=torch.Generator().manual_seed(seed)).int()


def pair(kind: Format, outputs: int, seed: int = 0) -> tuple[Quantized, Quantized]:
    """A matrix whose inputs are in an order of their own, and its blocks with inputs in order."""
    plain = random_blocks(kind, outputs, INPUTS, seed=seed)
    return Quantized(plain.data, kind, INPUTS, shuffled(INPUTS, seed)), plain


@by_rounding
@pytest.mark.parametrize("kind", [Format.INT4_32, Format.INT4_128, Format.INT8_128, Format.Q4_K])
def test_bits_are_those_of_inputs_in_order(kind: Format, rounding: Activations, threads: int) -> None:
    matrix, plain = pair(kind, 150)
    assert matrix.order is not None
    bias, norm = torch.randn(150), Norm(torch.rand(INPUTS) + 0.5, 1e-5)
    linear = Linear(matrix, bias, activation=Activation(Function.GELU), activations=rounding)
    other = Linear(plain, bias, activation=Activation(Function.GELU), activations=rounding)
    for rows in ROWS:
        x, residual = torch.randn(rows, INPUTS + 3)[:, 1:-2], torch.randn(rows, 150)
        assert torch.equal(linear(x), other(x[:, matrix.order]))
        normed = norm(x)[:, matrix.order]
        assert torch.equal(linear(x, norm, residual=residual), other(normed, residual=residual))


@by_rounding
def test_each_part_has_an_order_of_its_own(rounding: Activations, threads: int) -> None:
    (first, one), (second, other) = pair(Format.INT4_64, 70, 1), pair(Format.INT4_64, 30, 2)
    last = random_blocks(Format.INT4_64, 5, INPUTS)
    assert first.order is not None and second.order is not None
    linear = Linear([first, second, last], activations=rounding)
    alone = [Linear(part, activations=rounding) for part in (one, other, last)]
    for rows in ROWS:
        x = torch.randn(rows, INPUTS)
        parts = [part(y) for part, y in zip(alone, (x[:, first.order], x[:, second.order], x), strict=True)]
        assert torch.equal(linear(x), torch.cat(parts, 1))
    whole, out = linear(x), torch.full((300, 105), -7.0)
    for start, count in ((0, 1), (5, 3), (20, 16), (7, 17), (30, 48), (50, 100)):
        assert torch.equal(linear(x[start : start + count]), whole[start : start + count])
    linear(x, out=out, live=torch.tensor([211]))
    assert torch.equal(out[:211], whole[:211]) and (out[211:] == -7).all()


@by_rounding
@pytest.mark.parametrize("is_one_order", [True, False])
def test_gates_and_ups_have_orders(rounding: Activations, is_one_order: bool, threads: int) -> None:
    (gate, one), (up, other) = pair(Format.INT4_32, 70, 1), pair(Format.INT4_32, 70, 2)
    assert gate.order is not None and up.order is not None
    if is_one_order:
        up = Quantized(up.data, up.format, INPUTS, gate.order.clone())
    packed = pack_matrix([gate, up], 2, rounding)
    assert packed.orders is not None and len(packed.orders) == (1 if is_one_order else 2)
    relu = Activation(Function.RELU)
    linear = Linear([gate, up], activation=relu, gated=True, activations=rounding)
    gates, ups = Linear(one, activations=rounding), Linear(other, activations=rounding)
    for rows in ROWS:
        x = torch.randn(rows, INPUTS)
        assert torch.equal(linear(x), gates(x[:, gate.order]).clamp(min=0) * ups(x[:, up.order]))


def test_parts_of_one_order_are_joined() -> None:
    matrix, _ = pair(Format.INT4_128, 128)
    assert matrix.order is not None
    halves = [matrix[:64], Quantized(matrix.data[64:], matrix.format, INPUTS, matrix.order.clone())]
    packed, whole = pack_matrix(halves, 1, None), pack_matrix([matrix], 1, None)
    assert packed.parts == whole.parts and torch.equal(packed.memory, whole.memory)
    assert packed.orders is not None and packed.orders.shape == (1, INPUTS)
    bits = 8 * (packed.memory.nbytes + packed.orders.nbytes) / matrix.numel()
    assert bits < 4 + 8 * 6 / 128 + 4 * 8 / 128 + 0.3, "those of the codes, of scales and of the order"


def test_numbers_are_those_of_inputs_in_order() -> None:
    matrix, plain = pair(Format.INT4_64, 12)
    assert matrix.order is not None
    for dtype in (torch.float32, torch.bfloat16):
        numbers = matrix.dequantized(dtype)
        assert torch.equal(numbers[:, matrix.order], plain.dequantized(dtype))
        heads = matrix.view(3, 4, INPUTS).transpose(0, 1)
        assert torch.equal(heads.dequantized(dtype), numbers.view(3, 4, INPUTS).transpose(0, 1))
        assert torch.equal(
            Quantized.cat([matrix[:5], matrix[7:]])[3:].dequantized(dtype), numbers[[3, 4, *range(7, 12)]]
        )
    x = torch.randn(20, INPUTS)
    exact = x.double() @ matrix.dequantized().double().t()
    assert (Linear(matrix, activations=Activations.FLOAT32)(x) - exact).norm() < 1e-6 * exact.norm()


def test_compressed_queries_have_an_order() -> None:
    matrix, plain = pair(Format.INT4_32, 2 * (24 + 8))
    assert matrix.order is not None
    k_up, norm = torch.randn(2, 24, 40), Norm(torch.ones(40), 1e-6)
    queries, others = (LatentQueries(q_up, k_up, None, norm, 8) for q_up in (matrix, plain))
    for rows in (1, 20, 230):
        x = torch.randn(rows, INPUTS + 48)
        turned = torch.cat((x[:, matrix.order], x[:, INPUTS:]), 1)
        assert torch.equal(queries(x), others(turned))


def test_what_needs_inputs_in_order_is_refused() -> None:
    matrix, plain = pair(Format.INT4_32, 64)
    with pytest.raises(InputError, match=r"the inputs of Quantized\(.* are in an order of their own"):
        matrix.split(256, 1)
    for other in (plain, Quantized(plain.data, plain.format, INPUTS, shuffled(INPUTS, 9))):
        with pytest.raises(InputError, match="their inputs are in different orders"):
            Quantized.cat([matrix, other])
    with pytest.raises(InputError, match="their inputs are in different orders"):
        Quantized.cat([matrix, matrix], 1)
    with pytest.raises(InputError, match="the inputs of embeddings are in order"):
        embed(matrix, torch.tensor([1]), torch.float32)
    with pytest.raises(
        InputError, match="a Linear whose inputs are in an order of their own has no embeddings"
    ):
        embed(Linear(matrix), torch.tensor([1]), torch.float32)
    experts = matrix.view(2, 32, INPUTS)
    with pytest.raises(InputError, match="the matrices of expert 0 are in an order of their own"):
        Experts(experts, experts, random_blocks(Format.INT4_32, 2 * INPUTS, 32).view(2, INPUTS, 32), SWIGLU)
    with pytest.raises(InputError, match="must have each of its inputs once"):
        Linear(Quantized(plain.data, plain.format, INPUTS, torch.zeros(INPUTS, dtype=torch.int32)))
    for order in (
        torch.arange(INPUTS),
        torch.arange(INPUTS - 1).int(),
        torch.arange(INPUTS).int().to("meta"),
    ):
        with pytest.raises(InputError, match="is as many int32 on the CPU"):
            Quantized(plain.data, plain.format, INPUTS, order)
