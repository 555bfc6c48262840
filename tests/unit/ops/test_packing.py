"""Weights in the layouts of the CPU's kernels: every weight in its place, zeros elsewhere, whoever copies them."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from weft.ops import packing
from weft.ops.packing import PackingThreads, finish_packing, pack, packed_shape

SHAPES = [(1, 1), (15, 31), (64, 32), (65, 33), (200, 96), (704, 577)]


def panels_of(weight: Tensor, num_groups: int) -> Tensor:
    """The panels [P, in, 64] of `weight` [out, in]: those of the groups alternate."""
    padding = -(len(weight) // num_groups) % 64
    groups = [F.pad(group, (0, 0, 0, padding)).unflatten(0, (-1, 64)) for group in weight.chunk(num_groups)]
    return torch.stack(groups, 1).flatten(0, 1).transpose(1, 2)


def tiles_of(panels: Tensor) -> Tensor:
    """The tiles [P, blocks, 4, 16, 32] of panels [P, in, 64]."""
    padded = F.pad(panels, (0, 0, 0, -panels.shape[1] % 32))
    return padded.unflatten(2, (4, 16)).unflatten(1, (-1, 16, 2)).permute(0, 1, 4, 2, 5, 3).flatten(4)


def expected(weight: Tensor, num_groups: int, is_tiled: bool) -> Tensor:
    panels = panels_of(weight, num_groups)
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
