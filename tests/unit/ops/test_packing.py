"""Weights in the layouts of the CPU's kernels: every weight in its place, zeros elsewhere, whoever copies them."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from support.quantized import QUANTIZED, panels_of, random_blocks
from weft import _core
from weft.errors import InputError
from weft.ops import packing
from weft.ops.formats import Activations, Format
from weft.ops.packing import (
    PackedPart,
    PackingThreads,
    activations_of,
    finish_packing,
    pack,
    pack_matrix,
    packed_shape,
    parts_of,
)
from weft.ops.quantized import Quantized

SHAPES = [(1, 1), (15, 31), (64, 32), (65, 33), (200, 96), (704, 577)]


def dense_panels_of(weight: Tensor, num_groups: int) -> Tensor:
    """The panels [P, in, 64] of `weight` [out, in]: those of the groups alternate."""
    padding = -(len(weight) // num_groups) % 64
    groups = [F.pad(group, (0, 0, 0, padding)).unflatten(0, (-1, 64)) for group in weight.chunk(num_groups)]
    return torch.stack(groups, 1).flatten(0, 1).transpose(1, 2)


def tiles_of(panels: Tensor) -> Tensor:
    """The tiles [P, blocks, 4, 16, 32] of panels [P, in, 64]."""
    padded = F.pad(panels, (0, 0, 0, -panels.shape[1] % 32))
    return padded.unflatten(2, (4, 16)).unflatten(1, (-1, 16, 2)).permute(0, 1, 4, 2, 5, 3).flatten(4)


def expected(weight: Tensor, num_groups: int, is_tiled: bool) -> Tensor:
    panels = dense_panels_of(weight, num_groups)
    return tiles_of(panels) if is_tiled else panels


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_are_in_panels_or_tiles(shape: tuple[int, int], dtype: torch.dtype) -> None:
    for num_groups in (1, 2):
        weight = torch.randn(num_groups * shape[0], shape[1]).to(dtype)
        for is_tiled in {False, dtype is torch.bfloat16}:
            packed = pack([weight], num_groups, is_tiled)
            assert packed.shape == packed_shape(*shape, num_groups, is_tiled) and packed.dtype is dtype
            assert torch.equal(packed, expected(weight, num_groups, is_tiled))


@pytest.mark.parametrize("is_tiled", [False, True])
@pytest.mark.parametrize("piece_bytes", [1, 200, 1 << 22])
def test_parts_are_one_below_the_other(
    is_tiled: bool, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also parts with several leading dimensions, parts between the groups, and any pieces."""
    monkeypatch.setattr(packing, "PIECE_BYTES", piece_bytes)
    weight = torch.randn(240, 35).bfloat16()
    heads = weight[:64].view(4, 2, 8, 35).transpose(1, 2)
    turned = torch.cat((heads.flatten(0, 2), weight[64:]))
    assert torch.equal(pack([heads, weight[64:90], weight[90:]], 1, is_tiled), expected(turned, 1, is_tiled))
    assert torch.equal(pack([weight[:100], weight[100:]], 2, is_tiled), expected(weight, 2, is_tiled))
    columns = weight.t().contiguous().t()
    assert torch.equal(pack([columns], 1, is_tiled), expected(weight, 1, is_tiled))


def test_dtypes_are_converted() -> None:
    weight = torch.randn(70, 8)
    assert torch.equal(pack([weight], 1, True, torch.bfloat16), expected(weight.bfloat16(), 1, True))
    mixed = pack([weight[:30].half(), weight[30:]], 1, False)
    assert torch.equal(mixed, expected(torch.cat((weight[:30].half().float(), weight[30:])), 1, False))


def test_threads_pack_until_they_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "PIECE_BYTES", 1000)
    weights = [torch.randn(300, 65).bfloat16() for _ in range(20)]
    with PackingThreads():
        packed = [pack([weight], 1, True) for weight in weights]
        elsewhere: list[Tensor] = []
        other = threading.Thread(target=lambda: elsewhere.append(pack([weights[0]], 1, False)))
        other.start()
        other.join()
        assert torch.equal(elsewhere[0], expected(weights[0], 1, False)), "other threads are not affected"
        finish_packing()
        assert torch.equal(packed[-1], expected(weights[-1], 1, True))
        packed[-1] = pack([weights[-1]], 1, True)
    for weight, copy in zip(weights, packed, strict=True):
        assert torch.equal(copy, expected(weight, 1, True))
    assert torch.equal(pack([weights[0]], 1, False), expected(weights[0], 1, False))


def test_few_copies_wait_and_errors_are_raised() -> None:
    waiting, most, lock = 0, 0, threading.Lock()

    def copy() -> None:
        nonlocal waiting
        time.sleep(0.002)
        with lock:
            waiting -= 1

    with PackingThreads() as threads:
        for _ in range(40):
            threads.run(copy)
            with lock:
                waiting += 1
                most = max(most, waiting)
    assert waiting == 0 and most <= 3 * packing.MAX_THREADS

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"), PackingThreads() as threads:
        threads.run(fail)


FLOAT32 = Activations.FLOAT32


def blocks_of(parts: list[Quantized], num_groups: int = 1) -> Tensor:
    """Panels as `pack_matrix` writes them."""
    packed = pack_matrix(parts, num_groups, FLOAT32)
    num_outputs = sum(part.numel() // part.num_inputs for part in parts) // num_groups
    assert parts_of(packed.parts) == [PackedPart(parts[0].format, num_outputs, 0)]
    size = _core.panel_bytes(parts[0].format, FLOAT32, parts[0].num_inputs)
    return packed.memory.view(-1, size)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("shape", [(1, 1), (15, 2), (64, 1), (97, 3)])
def test_blocks_are_in_panels(kind: Format, shape: tuple[int, int]) -> None:
    num_outputs, blocks = shape
    matrix = random_blocks(kind, num_outputs, blocks * kind.block.inputs)
    assert torch.equal(blocks_of([matrix]), panels_of(matrix))


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
@pytest.mark.parametrize("piece_bytes", [1, 1000, 1 << 22])
def test_parts_of_blocks_are_one_below_the_other(
    kind: Format, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also parts with several leading dimensions, parts between the groups, and pieces that share a panel."""
    monkeypatch.setattr(packing, "PIECE_BYTES", piece_bytes)
    matrix = random_blocks(kind, 240, 2 * kind.block.inputs)
    heads = matrix[:72].view(3, 2, 12, matrix.num_inputs).transpose(1, 2)
    turned = Quantized.cat([heads.reshape(72, matrix.num_inputs), matrix[72:]])
    assert torch.equal(blocks_of([heads, matrix[72:89], matrix[89:]]), panels_of(turned))
    every_other = matrix[::2]
    assert torch.equal(blocks_of([every_other]), panels_of(every_other.contiguous()))
    gates, ups = (panels_of(half) for half in matrix.chunk(2))
    alternating = torch.stack((gates, ups), 1).flatten(0, 1)
    assert torch.equal(blocks_of([matrix[:100], matrix[100:]], 2), alternating)
    with PackingThreads():
        packed = blocks_of([heads, matrix[72:89], matrix[89:]])
    assert torch.equal(packed, panels_of(turned))


def test_matrices_of_several_formats_are_parts() -> None:
    one, two = random_blocks(Format.Q4_K, 70, 256), random_blocks(Format.Q6_K, 30, 256)
    dense = torch.randn(10, 256)
    packed = pack_matrix([one[:40], one[40:], two, dense.half(), dense], 1, FLOAT32)
    first, second = 2 * 2 * 4736, 2 * 6720
    assert parts_of(packed.parts) == [
        PackedPart(Format.Q4_K, 70, 0),
        PackedPart(Format.Q6_K, 30, first),
        PackedPart(Format.F32, 20, first + second),
    ]
    assert packed.memory.data_ptr() % 64 == 0
    assert torch.equal(packed.memory[:first], panels_of(one).flatten())
    assert torch.equal(packed.memory[first : first + second], panels_of(two).flatten())
    both = torch.cat((dense.half().float(), dense))
    assert torch.equal(packed.memory[first + second :].view(torch.float32), pack([both], 1, False).flatten())


def test_gates_and_ups_of_two_formats_are_parts() -> None:
    gates, ups = random_blocks(Format.Q4_0, 70, 64), random_blocks(Format.Q8_0, 70, 64)
    packed = pack_matrix([gates[:20], gates[20:], ups], 2, FLOAT32)
    size = 2 * 2 * 2 * 576
    assert parts_of(packed.parts) == [PackedPart(Format.Q4_0, 70, 0), PackedPart(Format.Q8_0, 70, size)]
    assert torch.equal(packed.memory[:size], panels_of(gates).flatten())
    assert torch.equal(packed.memory[size:], panels_of(ups).flatten())
    # Neighbours of one format are two parts if one is a gate.
    with pytest.raises(InputError, match=r"Q4_0, Q8_0, Q8_0, one below the other.* dequantize some"):
        pack_matrix([gates[:20], ups[:50], ups], 2, FLOAT32)
    with pytest.raises(InputError, match="gates and ups of different formats must be different matrices"):
        pack_matrix([gates[:60], ups], 2, FLOAT32)


def test_a_product_has_few_parts() -> None:
    kinds = (Format.Q4_0, Format.Q8_0, Format.Q4_1, Format.Q5_0, Format.Q5_1)
    parts = [random_blocks(kind, 64, 32) for kind in kinds]
    assert len(parts_of(pack_matrix(parts[:4], 1, FLOAT32).parts)) == 4
    with pytest.raises(InputError, match="Q4_0, Q8_0, Q4_1, Q5_0, Q5_1, one below the other"):
        pack_matrix(parts, 1, FLOAT32)


CPU = torch.device("cpu")


def test_the_users_choice_counts_while_a_model_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    can = {
        (Format.BF16, Activations.TWO_BFLOAT16),
        (Format.BF16, Activations.BFLOAT16),
        (Format.Q4_0, Activations.INT8),
    }
    monkeypatch.setattr(_core, "can_multiply", lambda kind, how: how is FLOAT32 or (kind, how) in can)
    monkeypatch.setattr(_core, "has_fast_bfloat16", lambda: True)
    monkeypatch.setattr(_core, "instruction_set", lambda: "avx2")
    assert activations_of(Format.F32, CPU, None) is FLOAT32
    assert activations_of(Format.BF16, CPU, None) is Activations.BFLOAT16
    assert activations_of(Format.Q4_0, CPU, None) is Activations.INT8
    assert activations_of(Format.Q4_0, torch.device("meta"), None) is FLOAT32
    with PackingThreads(Activations.TWO_BFLOAT16):
        assert activations_of(Format.BF16, CPU, None) is Activations.TWO_BFLOAT16
        assert activations_of(Format.Q4_0, CPU, None) is Activations.INT8
        assert activations_of(Format.BF16, CPU, FLOAT32) is FLOAT32
    with PackingThreads(FLOAT32):
        assert activations_of(Format.Q4_0, CPU, None) is FLOAT32
    assert activations_of(Format.Q4_0, CPU, None) is Activations.INT8
    with pytest.raises(InputError, match="multiplies BF16 by rows in INT8"):
        activations_of(Format.BF16, CPU, Activations.INT8)
