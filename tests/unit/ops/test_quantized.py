"""Quantised matrices: their numbers, against the gguf package and plain formulas, and their operations on rows."""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from support.quantized import GGUF, OTHERS, random_blocks
from weft.errors import InputError
from weft.ops.formats import Format
from weft.ops.quantized import Quantized

OUTPUTS = 7


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same bits, except in NaN."""
    both_nan = a.isnan() & b.isnan()
    return bool((both_nan | (a.view(torch.int32) == b.view(torch.int32))).all())


@pytest.mark.parametrize("kind", GGUF, ids=lambda kind: kind.name)
@pytest.mark.parametrize("has_special", [False, True], ids=["finite", "special"])
def test_numbers_are_those_of_the_gguf_package(kind: Format, has_special: bool) -> None:
    matrix = random_blocks(kind, OUTPUTS, 3 * kind.block.inputs, has_special=has_special)
    data = matrix.data.numpy()
    if kind is Format.MXFP4:  # the package gives numbers where the scale is NaN
        data = np.where(data == 255, 254, data)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind.name])
    own = Quantized(torch.from_numpy(data), kind, matrix.num_inputs).dequantized()
    assert own.shape == (OUTPUTS, 3 * kind.block.inputs)
    assert same_bits(own, torch.from_numpy(expected))
    assert has_special == (not own.isfinite().all())


def int4(block: np.ndarray, size: int) -> np.ndarray:
    scale, zero = block[:4].view(np.float32), np.float32(block[4])
    codes = block[8:].reshape(-1, 16)
    numbers = np.concatenate([codes & 15, codes >> 4], axis=1).reshape(size)
    return scale * (numbers.astype(np.float32) - zero)


def int8(block: np.ndarray, size: int) -> np.ndarray:
    return block[:4].view(np.float32) * block[4:].view(np.int8).astype(np.float32)


def fp8(block: np.ndarray, size: int) -> np.ndarray:
    codes = torch.from_numpy(block[4:].copy()).view(torch.float8_e4m3fn).float().numpy()
    return block[:4].view(np.float32) * codes


def mxfp4(block: np.ndarray, size: int) -> np.ndarray:
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    scale = np.nan if block[0] == 255 else 2.0 ** (float(block[0]) - 127)
    return (scale * values[np.concatenate([block[1:] & 15, block[1:] >> 4])]).astype(np.float32)


FORMULAS: dict[Format, Callable[[np.ndarray, int], np.ndarray]] = {
    **dict.fromkeys((Format.INT4_32, Format.INT4_64, Format.INT4_128), int4),
    **dict.fromkeys((Format.INT8_32, Format.INT8_128), int8),
    Format.FP8: fp8,
    Format.MXFP4: mxfp4,
}


@pytest.mark.parametrize("kind", list(FORMULAS), ids=lambda kind: kind.name)
@pytest.mark.parametrize("has_special", [False, True], ids=["finite", "special"])
def test_numbers_follow_the_formula(kind: Format, has_special: bool) -> None:
    size = kind.block.inputs
    matrix = random_blocks(kind, OUTPUTS, 3 * size, has_special=has_special)
    with np.errstate(all="ignore"):
        blocks = matrix.data.numpy().reshape(-1, kind.block.bytes)
        expected = np.stack([FORMULAS[kind](block, size) for block in blocks]).reshape(OUTPUTS, -1)
    assert same_bits(matrix.dequantized(), torch.from_numpy(expected))


def test_each_scale_of_mxfp4() -> None:
    block = torch.arange(16, dtype=torch.uint8) * 17
    data = torch.cat([torch.arange(256, dtype=torch.uint8)[:, None], block.expand(256, 16)], 1)
    numbers = Quantized(data, Format.MXFP4, 32).dequantized()
    with np.errstate(over="ignore"):
        expected = torch.from_numpy(np.stack([mxfp4(row, 32) for row in data.numpy()]))
    assert same_bits(numbers, expected)
    assert numbers[255].isnan().all() and float(numbers[0, 1]) == 2.0**-128


@pytest.mark.parametrize("kind", [*GGUF, *OTHERS], ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_may_end_inside_a_block(kind: Format, dtype: torch.dtype) -> None:
    size = kind.block.inputs
    whole = random_blocks(kind, OUTPUTS, 2 * size)
    part = Quantized(whole.data, kind, 2 * size - 5)
    assert torch.equal(part.dequantized(dtype), whole.dequantized().to(dtype)[:, :-5])


def test_many_numbers_are_converted_in_pieces() -> None:
    matrix = random_blocks(Format.Q8_0, 300, 8192)
    assert torch.equal(matrix.dequantized(torch.bfloat16), matrix.dequantized().bfloat16())


def test_operations_on_rows_are_those_of_a_tensor() -> None:
    matrix = random_blocks(Format.Q4_0, 24, 96)
    numbers = matrix.dequantized()
    index = torch.tensor([3, 1, 3])
    cases: list[tuple[Quantized, Tensor]] = [
        (matrix.view(4, 6, 96), numbers.view(4, 6, 96)),
        (matrix.view(4, -1, 96), numbers.view(4, -1, 96)),
        (matrix.view(24, -1), numbers.view(24, -1)),
        (matrix.reshape(2, 12, 96), numbers.reshape(2, 12, 96)),
        (matrix.unflatten(0, (-1, 6)), numbers.unflatten(0, (-1, 6))),
        (
            matrix.unflatten(0, (4, 2, 3)).transpose(1, 2),
            numbers.unflatten(0, (4, 2, 3)).transpose(1, 2),
        ),
        (
            matrix.unflatten(0, (2, 2, 2, 3)).transpose(1, 3),
            numbers.unflatten(0, (2, 2, 2, 3)).transpose(1, 3),
        ),
        (matrix.unflatten(0, (4, 6)).flatten(0, 1), numbers),
        (matrix[5], numbers[5]),
        (matrix[::2], numbers[::2]),
        (matrix[2:9, :], numbers[2:9, :]),
        (matrix[index], numbers[index]),
        (matrix.view(4, 6, 96)[:, 2:5], numbers.view(4, 6, 96)[:, 2:5]),
        (matrix.view(4, 6, 96)[1, 2], numbers.view(4, 6, 96)[1, 2]),
        (matrix.view(4, 6, 96)[..., :2, :], numbers.view(4, 6, 96)[..., :2, :]),
        (matrix[::2].contiguous(), numbers[::2]),
    ]
    cases += zip(matrix.split(10), numbers.split(10), strict=True)
    cases += zip(matrix.split([4, 20]), numbers.split([4, 20]), strict=True)
    cases += zip(matrix.view(4, 6, 96).split([1, 5], 1), numbers.view(4, 6, 96).split([1, 5], 1), strict=True)
    cases += zip(matrix.chunk(5), numbers.chunk(5), strict=True)
    cases += zip(matrix.view(4, 6, 96).unbind(1), numbers.view(4, 6, 96).unbind(1), strict=True)
    cases += zip(matrix.split([32, 64], 1), numbers.split([32, 64], 1), strict=True)
    cases += zip(matrix.split(64, -1), numbers.split(64, -1), strict=True)
    for own, expected in cases:
        assert own.shape == expected.shape and own.dim() == expected.dim() and len(own) == len(expected)
        assert torch.equal(own.dequantized(), expected)
    assert matrix.numel() == numbers.numel() and matrix.nbytes == 24 * 3 * 18


def test_matrices_are_joined() -> None:
    one, two = random_blocks(Format.Q5_1, 4, 64), random_blocks(Format.Q5_1, 3, 64, seed=1)
    both = torch.cat([one.dequantized(), two.dequantized()])
    assert torch.equal(Quantized.cat([one, two]).dequantized(), both)
    halves = both.split(32, 1)
    swapped = Quantized.cat(Quantized.cat([one, two]).split(32, 1)[::-1], 1)
    assert torch.equal(swapped.dequantized(), torch.cat(halves[::-1], 1))


def test_a_matrix_without_contents_has_a_shape() -> None:
    meta = random_blocks(Format.Q4_K, 8, 512).to("meta")
    assert meta.is_meta and not meta.is_cpu and meta.device.type == "meta"
    assert meta.dequantized(torch.bfloat16).shape == (8, 512)
    assert meta.dequantized(torch.bfloat16).is_meta
    assert Quantized.cat([meta, meta]).shape == (16, 512)
    assert Quantized.cat(meta.split(256, 1), 1).shape == (8, 512)
    assert meta.view(2, 4, 512)[:, 1].shape == (2, 512)


def test_wrong_data_and_operations_are_refused() -> None:
    matrix = random_blocks(Format.Q4_0, 4, 64)
    with pytest.raises(InputError, match=r"64 inputs in Q4_1 need rows of 40 uint8, not \[4, 36\]"):
        Quantized(matrix.data, Format.Q4_1, 64)
    with pytest.raises(InputError, match="BF16 has no blocks"):
        Quantized(matrix.data, Format.BF16, 64)
    with pytest.raises(InputError, match="contiguous"):
        Quantized(matrix.data.t().contiguous().t(), Format.Q4_0, 64)
    with pytest.raises(InputError, match="blocks have 32 inputs"):
        matrix.split([16, 48], 1)
    with pytest.raises(InputError, match="rows of 64 inputs, not the sizes"):
        matrix.view(8, 32)
    with pytest.raises(InputError, match="only the leading dimensions"):
        matrix.transpose(0, 1)
    with pytest.raises(InputError, match="use split"):
        matrix[:, :32]
    with pytest.raises(InputError, match="different formats"):
        Quantized.cat([matrix, random_blocks(Format.Q8_0, 4, 64)])
    with pytest.raises(InputError, match="can't be joined: blocks have 32"):
        Quantized.cat([Quantized(matrix.data, Format.Q4_0, 50), matrix], 1)
