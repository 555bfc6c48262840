"""Products of quantised matrices with rows in int8: close to double precision of the same rows, the same bits in any
batch and with any instruction set.

Run as a script this file prints a digest of products' bits.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

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
from weft.ops.linear import Linear, Norm

INT8 = Activations.INT8
KINDS = tuple(kind for kind in QUANTIZED if kind is not Format.FP8)
EACH = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
SETS = ("plain", "avx2", "avx512")


def rounded(x: Tensor) -> Tensor:
    """Rows [N, in] as the product reads them, in float64."""
    blocks = torch.nn.functional.pad(x, (0, -x.shape[1] % 32)).unflatten(1, (-1, 32))
    largest = blocks.abs().amax(2, keepdim=True)
    factor = torch.full_like(largest, 127) / largest  # torch's 127 / largest multiplies by the inverse
    codes = torch.where(largest < 2.0**-119, 0.0, (blocks * factor).round())
    numbers: Tensor = (codes.double() * (largest / 127).double()).flatten(1)
    return numbers[:, : x.shape[1]]


def check(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """Compare a product with double precision. Numbers near a min are the difference of larger ones."""
    x, weight = rounded(x), weight.double()
    bound = x.abs().sum(1, keepdim=True) * weight.abs().amax(1)
    is_good = (out.double() - x @ weight.T).abs() <= 1e-6 * bound
    assert (is_good | (bound > 1e37)).all()  # the sums of so large numbers may be infinite


def inputs_of(kind: Format) -> tuple[int, ...]:
    size = kind.block.inputs
    return (256, 2048) if size == 256 else (size, 2 * size, 576, 1536)


@EACH
def test_values_are_those_of_double_precision(kind: Format) -> None:
    for inputs in (*inputs_of(kind), 2 * kind.block.inputs - 7):
        for outputs in (1, 33, 150):
            matrix = random_blocks(kind, outputs, inputs)
            linear, x = Linear(matrix, activations=INT8), torch.randn(64, inputs + 3)[:, 1 : inputs + 1]
            weight = matrix.dequantized()
            for rows in (*range(1, 18), 64):
                check(linear(x[:rows]), x[:rows], weight)


@EACH
def test_a_row_has_the_same_bits_in_any_batch(kind: Format) -> None:
    inputs = 5 * kind.block.inputs
    linear, x = Linear(random_blocks(kind, 90, inputs), activations=INT8), torch.randn(120, inputs)
    norm = Norm(torch.rand(inputs) + 0.5, 1e-5)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        whole, normed = linear(x), linear(x, norm)
        for first, count in ((0, 1), (5, 2), (7, 3), (1, 5), (20, 8), (2, 9), (13, 16), (40, 17), (3, 65)):
            assert torch.equal(linear(x[first : first + count]), whole[first : first + count])
            assert torch.equal(linear(x[first : first + count], norm), normed[first : first + count])
    torch.set_num_threads(1)


@EACH
def test_rounding_rows_costs_little(kind: Format) -> None:
    inputs = 1536
    matrix, x = random_blocks(kind, 64, inputs), torch.randn(9, inputs)
    exact = x.double() @ matrix.dequantized().double().T
    assert (Linear(matrix, activations=INT8)(x) - exact).norm() <= 0.015 * exact.norm()


@EACH
@pytest.mark.parametrize("byte", [0x00, 0x80, 0x7F, 0xFF])
def test_no_sum_overflows(kind: Format, byte: int) -> None:
    """The largest codes, positive and negative, and rows of 127 and -127."""
    matrix = random_blocks(kind, 40, 2 * kind.block.inputs)
    blocks = matrix.data.unflatten(1, (-1, kind.block.bytes))
    first, end = 2, kind.block.bytes  # after d
    if kind in (Format.Q4_1, Format.Q5_1, Format.Q4_K, Format.Q5_K) or kind >= Format.INT8_32:
        first = 4
    elif kind >= Format.INT4_32:
        first = 8
    elif kind is Format.MXFP4:
        first = 1
    elif kind is Format.Q6_K:
        first, end = 0, 208
    blocks[..., first:end] = byte
    weight, linear = matrix.dequantized(), Linear(matrix, activations=INT8)
    signs = torch.ones(20, matrix.num_inputs)
    signs[1] = -1
    signs[2:, ::2] = -1
    signs[3:] *= torch.randint(2, (17, matrix.num_inputs)) * 2 - 1
    for rows in (1, 4, 20):
        check(linear(signs[:rows] * 3.7), signs[:rows] * 3.7, weight)


@EACH
def test_rows_of_zeros_and_tiny_numbers(kind: Format) -> None:
    matrix = random_blocks(kind, 70, 3 * kind.block.inputs)
    x = torch.randn(12, matrix.num_inputs)
    x[0] = 0
    x[1] *= 1e-38  # counts as zero
    x[2] *= 1e-30
    x[3] *= 1e30
    x[4, ::5] = 0
    linear = Linear(matrix, activations=INT8)
    for rows in (2, 5, 12):
        out = linear(x[:rows])
        assert (out[:2] == 0).all()
        assert out.isfinite().all()
        check(out, x[:rows], matrix.dequantized())


@EACH
def test_what_is_not_finite_gives_nan(kind: Format) -> None:
    matrix = random_blocks(kind, 70, 3 * kind.block.inputs)
    linear, x = Linear(matrix, activations=INT8), torch.randn(20, matrix.num_inputs)
    good = linear(x)
    for row, value in ((0, torch.nan), (3, torch.inf), (17, -torch.inf)):
        x[row, -1 - row] = value
    out = linear(x)
    bad = torch.zeros(20, dtype=torch.bool)
    bad[[0, 3, 17]] = True
    assert out[bad].isnan().all()
    assert torch.equal(out[~bad], good[~bad])
    assert linear(x[:1]).isnan().all()


@EACH
def test_special_scales_reach_the_results(kind: Format) -> None:
    matrix = random_blocks(kind, 70, 3 * kind.block.inputs, has_special=True)
    weight = matrix.dequantized()
    is_finite = weight.isfinite().all(1)
    # The largest numbers of MXFP4 are infinite in float32, but not times small inputs.
    is_special = weight.isnan().any(1) if kind is Format.MXFP4 else ~is_finite
    linear, x = Linear(matrix, activations=INT8), torch.randn(20, matrix.num_inputs)
    for rows in (1, 5, 20):
        out = linear(x[:rows])
        assert not out[:, is_special].isfinite().any()
        check(out[:, is_finite], x[:rows], weight[is_finite])


def test_parts_share_their_rows() -> None:
    kinds, outputs = (Format.Q4_K, Format.Q6_K, Format.Q8_0), (40, 64, 70)
    parts = [random_blocks(kind, count, 512) for kind, count in zip(kinds, outputs, strict=True)]
    bias, residual, x = torch.randn(174), torch.randn(20, 174), torch.randn(20, 512)
    joined = Linear(parts, bias, activations=INT8)
    alone = torch.cat([Linear(part, activations=INT8)(x) for part in parts], 1)
    for rows in (1, 4, 20):
        out = joined(x[:rows], residual=residual[:rows])
        assert torch.equal(out, alone[:rows] + bias + residual[:rows])


def test_gates_and_ups_may_have_different_formats() -> None:
    gates, ups = random_blocks(Format.Q5_K, 100, 512), random_blocks(Format.IQ4_NL, 100, 512)
    gated = Linear([gates, ups], activation=SWIGLU, gated=True, activations=INT8)
    for rows in (1, 4, 20):
        x = torch.randn(rows, 512)
        gate, up = (Linear(part, activations=INT8)(x) for part in (gates, ups))
        torch.testing.assert_close(gated(x), torch.nn.functional.silu(gate) * up, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [Format.Q4_K, Format.MXFP4, Format.INT4_32])
def test_experts(kind: Format) -> None:
    hidden, inner, experts, chosen = 256, 512, 6, 2
    gates, ups, downs = (
        random_blocks(kind, experts * outputs, inputs, seed=seed)
        for seed, (outputs, inputs) in enumerate([(inner, hidden), (inner, hidden), (hidden, inner)])
    )
    gate_of, up_of, down_of = (part.unflatten(0, (experts, -1)) for part in (gates, ups, downs))
    mixture = Experts(gate_of, up_of, down_of, Activation(Function.SILU), activations=INT8)
    for rows in (1, 3, 40):
        x, index, weights = routed(rows, experts, chosen, hidden)
        out = mixture(x, index, weights)
        expected = torch.zeros(rows, hidden)
        for row in range(rows):
            for expert, weight in zip(index[row].tolist(), weights[row], strict=True):
                gate, up, down = (part[expert] for part in (gate_of, up_of, down_of))
                pair = Linear([gate, up], activation=SWIGLU, gated=True, activations=INT8)
                expected[row] += weight * Linear(down, activations=INT8)(pair(x[row : row + 1]))[0]
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-6 * expected.abs().max().item())
        for row in range(rows):
            assert torch.equal(
                mixture(x[row : row + 1], index[row : row + 1], weights[row : row + 1])[0], out[row]
            )


def test_other_formats_have_no_such_products() -> None:
    for matrix in (random_blocks(Format.FP8, 64, 128), torch.randn(64, 128)):
        with pytest.raises(InputError, match="no kernel for this processor multiplies"):
            Linear(matrix, activations=INT8)


@pytest.mark.parametrize("name", SETS[: SETS.index(_core.instruction_set()) + 1])
def test_all_instruction_sets_give_the_same_bits(name: str) -> None:
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "WEFT_INSTRUCTION_SET": name, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [name, digest()]


def digest() -> str:
    """A digest of the bits of products in all formats."""
    bits = hashlib.sha256()
    generator = torch.Generator().manual_seed(3)
    for kind in KINDS:
        for inputs in (kind.block.inputs, 1536, 4 * kind.block.inputs - 9):
            matrix = random_blocks(kind, 100, inputs, has_special=True)
            linear, x = Linear(matrix, activations=INT8), torch.randn(40, inputs, generator=generator)
            x *= torch.randn(40, inputs, generator=generator).exp()
            for rows in (*range(1, 10), 16, 19, 40):
                out = linear(x[:rows])
                out[out.isnan()] = 0.5  # instruction sets may differ in the bits of NaN
                bits.update(out.numpy().tobytes())
    return bits.hexdigest()


if __name__ == "__main__":
    print(_core.instruction_set(), digest())
