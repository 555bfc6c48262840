"""Products with quantised matrices whose input rows are not rounded: the bits of products with the same numbers in
float32."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from support.experts import routed
from support.quantized import QUANTIZED, random_blocks
from weft import _core
from weft.errors import InputError
from weft.ops.activation import SWIGLU, Activation, Function
from weft.ops.experts import Experts
from weft.ops.formats import Activations, Format
from weft.ops.linear import Added, Linear, Norm
from weft.ops.packing import PackedPart, parts_of
from weft.ops.quantized import Matrix, Quantized

FLOAT32 = Activations.FLOAT32
EACH = pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
ROWS = (1, 2, 3, 6, 7, 31, 100)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def dense(matrix: Matrix) -> Tensor:
    return matrix.dequantized() if isinstance(matrix, Quantized) else matrix


def both(
    matrices: Matrix | Sequence[Matrix], *args: Tensor | None, **options: object
) -> tuple[Linear, Linear]:
    """A product with the matrices, and the same with their numbers in float32."""
    parts = [matrices] if isinstance(matrices, Tensor | Quantized) else matrices
    made = (
        Linear(these, *args, activations=FLOAT32, **options)  # type: ignore[arg-type]
        for these in (parts, [dense(part).float() for part in parts])
    )
    return next(made), next(made)


@EACH
@pytest.mark.parametrize("outputs", [1, 33, 64, 150])
def test_bits_are_those_of_the_numbers_in_float32(kind: Format, outputs: int, threads: int) -> None:
    size = kind.block.inputs
    for inputs in (size, 5 * size, max(300, size) - 7):
        quantized, plain = both(random_blocks(kind, outputs, inputs))
        assert parts_of(quantized.packed.parts) == [PackedPart(kind, outputs, 0)]
        whole = torch.randn(max(ROWS), inputs + 3)[:, 1 : inputs + 1]
        for rows in ROWS:
            assert torch.equal(quantized(whole[:rows]), plain(whole[:rows]))


@EACH
def test_special_scales_have_the_same_effect(kind: Format) -> None:
    matrix = random_blocks(kind, 70, 3 * kind.block.inputs, has_special=True)
    quantized, plain = both(matrix)
    for rows in (1, 20):
        x = torch.randn(rows, matrix.num_inputs)
        torch.testing.assert_close(quantized(x), plain(x), rtol=0, atol=0, equal_nan=True)


@EACH
def test_what_stands_around_a_product_is_the_same(kind: Format) -> None:
    inputs, outputs = 2 * kind.block.inputs, 100
    matrix, bias = random_blocks(kind, outputs, inputs), torch.randn(outputs)
    norm, x = Norm(torch.rand(inputs) + 0.5, 1e-5), torch.randn(20, inputs)
    pair = both(matrix, bias, activation=Activation(Function.GELU), scale=0.7, softcap=2.0)
    results = []
    for linear in pair:
        residual, also = torch.ones(20, outputs + 1)[:, :outputs], torch.full((20, outputs), -7.0)
        out, total = torch.full((20, outputs), -7.0), torch.full((20, inputs), -7.0)
        live = torch.tensor([17])
        linear(x, norm, residual=residual, out=out, also=also, live=live)
        assert (out[17:] == -7).all()
        added = Added(torch.ones(20, inputs), norm, total)
        results.append([out, also, linear(x, norm, residual=residual, added=added), total])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@EACH
@pytest.mark.parametrize("has_bias", [False, True])
def test_gates_multiply_ups(kind: Format, has_bias: bool) -> None:
    inputs = kind.block.inputs
    matrix, bias = random_blocks(kind, 2 * 70, inputs), torch.randn(2 * 70) if has_bias else None
    for parts in ([matrix], [matrix[:70], matrix[70:]], [matrix[:20], matrix[20:]]):
        quantized, plain = both(parts, bias, activation=SWIGLU, gated=True)
        for rows in (1, 5, 40):
            x = torch.randn(rows, inputs)
            assert torch.equal(quantized(x), plain(x))


def test_one_product_has_matrices_of_several_formats(threads: int) -> None:
    parts: list[Matrix] = [
        random_blocks(Format.Q4_K, 90, 512),
        random_blocks(Format.Q6_K, 30, 512),
        torch.randn(20, 512).bfloat16(),
        random_blocks(Format.Q8_0, 3, 512),
    ]
    bias = torch.randn(143)
    quantized, plain = both(parts, bias)
    heads = both([part.view(3, -1, 512) if len(part) % 3 == 0 else part for part in parts], bias)[0]
    assert quantized.num_outputs == 143
    for rows in ROWS:
        x = torch.randn(rows, 512)
        residual = torch.randn(rows, 143)
        expected = plain(x, residual=residual)
        assert torch.equal(quantized(x, residual=residual), expected)
        assert torch.equal(heads(x, residual=residual), expected)


@pytest.mark.parametrize("up_kind", [Format.Q6_K, Format.F16])
def test_gates_and_ups_may_have_different_formats(up_kind: Format) -> None:
    gate = random_blocks(Format.Q4_K, 70, 256)
    up: Matrix = torch.randn(70, 256).half() if up_kind is Format.F16 else random_blocks(up_kind, 70, 256)
    quantized, plain = both([gate, up], torch.randn(140), activation=SWIGLU, gated=True, scale=0.5)
    assert len(parts_of(quantized.packed.parts)) == 2
    for rows in (1, 6, 40):
        x = torch.randn(rows, 256)
        assert torch.equal(quantized(x), plain(x))


def test_a_row_has_the_same_bits_alone() -> None:
    linear = Linear(
        [random_blocks(Format.Q5_K, 70, 512), random_blocks(Format.INT4_128, 70, 512)], activations=FLOAT32
    )
    x = torch.randn(50, 512)
    whole = linear(x)
    for row in (0, 17, 49):
        assert torch.equal(linear(x[row : row + 1])[0], whole[row])


def test_only_formats_with_a_kernel_take_other_activations() -> None:
    for kind in QUANTIZED:
        for how in (Activations.TWO_BFLOAT16, Activations.BFLOAT16):
            assert not _core.can_multiply(kind, how)
            with pytest.raises(InputError, match=f"multiplies {kind.name} by rows in {how.name}"):
                Linear(random_blocks(kind, 4, 256), activations=how)


def test_parts_have_one_number_of_inputs() -> None:
    with pytest.raises(InputError, match=r"one number of inputs, not \[64, 32\]"):
        Linear([random_blocks(Format.Q4_0, 4, 64), random_blocks(Format.Q4_0, 4, 32)])


def test_a_product_without_contents_has_sizes() -> None:
    meta = [random_blocks(kind, 8, 64).to("meta") for kind in (Format.Q4_0, Format.Q8_0)]
    linear = Linear(meta)
    assert (linear.num_outputs, linear.num_inputs) == (16, 64) and linear.weight.is_meta


class Lazy(Sequence[Quantized]):
    """Matrices that are made when they are read."""

    def __init__(self, matrices: list[Quantized]) -> None:
        self.matrices = matrices

    def __len__(self) -> int:
        return len(self.matrices)

    def __getitem__(self, index: int) -> Quantized:  # type: ignore[override]
        return self.matrices[index][:]


@EACH
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("is_one_format", [False, True])
def test_experts_have_the_bits_of_their_numbers(
    kind: Format, gated: bool, is_one_format: bool, threads: int
) -> None:
    experts, inner, hidden = 5, 256, 256 + 40
    up_kind = kind if is_one_format else Format.Q8_0 if kind is Format.Q4_0 else Format.Q4_0
    up = random_blocks(up_kind, experts * inner, hidden).view(experts, inner, hidden)
    gates = [random_blocks(kind, inner, hidden, seed=expert) for expert in range(experts)]
    down = random_blocks(Format.Q6_K, experts * hidden, inner).view(experts, hidden, inner)
    up_bias, down_bias = torch.randn(experts, inner), torch.randn(experts, hidden)
    biases = {"up_bias": up_bias, "down_bias": down_bias, "gate_bias": up_bias.flip(0) if gated else None}
    silu = Activation(Function.SILU)
    quantized = Experts(Lazy(gates) if gated else None, up, down, silu, activations=FLOAT32, **biases)
    numbers = torch.stack([dense(gate) for gate in gates]) if gated else None
    plain = Experts(numbers, dense(up), dense(down), silu, activations=FLOAT32, **biases)
    assert len(parts_of(quantized.up.parts)) == (1 if is_one_format or not gated else 2)
    assert quantized.parameters_of_one == plain.parameters_of_one
    for rows in (1, 9, 60):
        x, index, weights = routed(rows, experts, 2, hidden)
        assert torch.equal(quantized(x, index, weights), plain(x, index, weights))


def test_experts_of_different_formats_are_refused() -> None:
    ups = [random_blocks(kind, 64, 32) for kind in (Format.Q4_0, Format.Q8_0)]
    down = random_blocks(Format.Q8_0, 2 * 32, 64).view(2, 32, 64)
    with pytest.raises(InputError, match="expert 1 are in Q8_0, those of the first in Q4_0; convert them"):
        Experts(None, ups, down, Activation(Function.SILU))
