"""Masks by slot: each row of logits under the mask of its slot and position."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft.errors import InputError
from weft.ops.slot_masks import SlotMasks, apply_slot_masks_, copy_slot_masks

SLOTS, POSITIONS, VOCAB = 5, 3, 70


def random_masks(seed: int) -> SlotMasks:
    generator = torch.Generator().manual_seed(seed)
    rows, words = SLOTS * POSITIONS, -(-VOCAB // 32)
    masks = torch.randint(-(2**31), 2**31, (rows, words), generator=generator, dtype=torch.int64)
    flags = torch.randint(0, 2, (rows,), generator=generator, dtype=torch.int32)
    return SlotMasks(masks.int(), flags, torch.rand(rows, generator=generator), POSITIONS)


def allowed(masks: SlotMasks, row: int, token: int) -> bool:
    if not masks.flags[row]:
        return True
    return 0 <= token < VOCAB and bool(int(masks.masks[row, token // 32]) >> token % 32 & 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("first", "width"), [(0, 1), (0, 3), (1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("pruned", [False, True])
def test_logits_are_masked_by_slot_and_position(
    dtype: torch.dtype, first: int, width: int, pruned: bool
) -> None:
    masks, slots = random_masks(1), torch.tensor([4, 0, 2, 2])
    columns = 40 if pruned else VOCAB
    d2t = torch.arange(columns) % 7 if pruned else None
    logits = torch.randn(len(slots) * width, columns).to(dtype)
    expected = logits.clone()
    for row in range(len(logits)):
        mask_row = int(slots[row // width]) * POSITIONS + first + row % width
        for column in range(columns):
            token = column + (int(d2t[column]) if d2t is not None else 0)
            if not allowed(masks, mask_row, token):
                expected[row, column] = float("-inf")
    apply_slot_masks_(logits, masks, slots, first, d2t)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize(("first", "stop"), [(0, 1), (0, 3), (1, 3), (2, 2)])
def test_a_copy_moves_the_rows_of_its_slots_and_positions(first: int, stop: int) -> None:
    source, to, slots = random_masks(2), random_masks(3), torch.tensor([3, 1])
    masks, flags, temperatures = (x.clone() for x in (to.masks, to.flags, to.temperatures))
    for slot in slots.tolist():
        for row in range(slot * POSITIONS + first, slot * POSITIONS + stop):
            flags[row], temperatures[row] = source.flags[row], source.temperatures[row]
            if source.flags[row]:
                masks[row] = source.masks[row]
    copy_slot_masks(to, source, slots, first, stop)
    for found, wanted in zip(
        (to.masks, to.flags, to.temperatures), (masks, flags, temperatures), strict=True
    ):
        assert torch.equal(found, wanted)


def bad_rows() -> list[tuple[Tensor, int]]:
    return [(torch.zeros(3, VOCAB), 0), (torch.zeros(2 * POSITIONS, VOCAB), 1)]


@pytest.mark.parametrize(("logits", "first"), bad_rows())
def test_logits_that_do_not_fit_the_slots_are_refused(logits: Tensor, first: int) -> None:
    with pytest.raises(InputError, match="don't fit"):
        apply_slot_masks_(logits, random_masks(0), torch.tensor([0, 1]), first)


def test_a_slot_that_is_none_is_an_error_and_writes_nothing() -> None:
    logits = torch.zeros(1, VOCAB)
    with pytest.raises(IndexError, match="mask rows"):
        apply_slot_masks_(logits, random_masks(0), torch.tensor([SLOTS]))
    assert not logits.any()
