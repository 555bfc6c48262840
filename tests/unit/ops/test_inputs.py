"""What an iteration reads of its slots, and what it takes of the host's proposals, on the CPU."""

from __future__ import annotations

import pytest
import torch

from weft.errors import InputError
from weft.ops.slots import SlotParams, read_slots_, take_proposals_

SLOTS, DRAFTS, PAGES = 6, 4, 3


@pytest.mark.parametrize("width", [1, 3, 5])
def test_rows_get_what_their_slots_have(width: int) -> None:
    torch.manual_seed(width)
    length, last_token = torch.randint(0, 90, (SLOTS,)), torch.randint(0, 90, (SLOTS,))
    drafts = torch.randint(-1, 90, (DRAFTS, SLOTS))
    page_table = torch.randint(0, 9, (SLOTS, PAGES)).int()
    slots = torch.tensor([5, 0, 5, 3])
    base, tokens = torch.zeros(4, dtype=torch.int64), torch.zeros(4, width, dtype=torch.int64)
    pages = torch.zeros(4, PAGES, dtype=torch.int32)
    read_slots_(slots, (length, last_token, drafts, page_table), base, tokens, pages)
    assert torch.equal(base, length[slots])
    assert torch.equal(tokens, torch.cat((last_token[None], drafts[: width - 1]))[:, slots].T)
    assert torch.equal(pages, page_table[slots])


def test_more_drafts_than_there_are_is_refused() -> None:
    numbers = torch.zeros(SLOTS, dtype=torch.int64)
    table = torch.zeros(SLOTS, PAGES, dtype=torch.int32)
    by_slot = (numbers, numbers, torch.zeros(2, SLOTS, dtype=torch.int64), table)
    with pytest.raises(InputError, match="2 drafts by slot, not 3"):
        read_slots_(numbers[:1], by_slot, numbers[:1], torch.zeros(1, 4, dtype=torch.int64), table[:1])


@pytest.mark.parametrize("number", [1, 3, 4])
def test_proposals_become_drafts_up_to_each_slots_limit(number: int) -> None:
    params = SlotParams.neutral(SLOTS, 100, 4, 2, 20, torch.device("cpu"))
    params.max_drafts.copy_(torch.tensor([0, 1, 2, 3, 4, 2**31 - 1]))
    proposed = torch.arange(DRAFTS * SLOTS).view(DRAFTS, SLOTS)
    drafts = torch.full((DRAFTS, SLOTS), -7)
    slots = torch.tensor([4, 1, 0, 5])
    expected = drafts.clone()
    for slot in slots.tolist():
        for k in range(number):
            expected[k, slot] = proposed[k, slot] if k < params.max_drafts[slot] else -1
    take_proposals_(slots, proposed, drafts, number, params)
    assert torch.equal(drafts, expected)
