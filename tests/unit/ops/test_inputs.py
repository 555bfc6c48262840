"""Opening slots, reading the inputs of an iteration from them, and taking the host's proposals, on the CPU."""

from __future__ import annotations

import pytest
import torch

from weft.errors import InputError
from weft.ops.slots import RECORD_WORDS, SlotParams, open_slots_, read_slots_, take_proposals_

SLOTS, DRAFTS, PAGES = 6, 4, 3


@pytest.mark.parametrize("width", [1, 3, 5])
def test_rows_get_what_their_slots_have(width: int) -> None:
    torch.manual_seed(width)
    length, last_token = torch.randint(0, 90, (SLOTS,)), torch.randint(0, 90, (SLOTS,))
    drafts = torch.randint(-1, 90, (DRAFTS, SLOTS))
    page_table = torch.randint(0, 9, (SLOTS, PAGES)).int()
    slots = torch.tensor([4, 0, 4, 3])
    base, tokens = torch.zeros(4, dtype=torch.int64), torch.zeros(4, width, dtype=torch.int64)
    pages = torch.zeros(4, PAGES, dtype=torch.int32)
    read_slots_(slots, (length, last_token, drafts, page_table), base, tokens, pages)
    assert torch.equal(base, length[slots])
    assert torch.equal(tokens, torch.cat((last_token[None], drafts[: width - 1]))[:, slots].T)
    assert torch.equal(pages, page_table[slots])


def test_rows_after_those_with_tokens_get_their_pages_alone() -> None:
    numbers, drafts = torch.arange(SLOTS) + 20, torch.arange(DRAFTS * SLOTS).view(DRAFTS, SLOTS)
    page_table = torch.arange(SLOTS * PAGES).view(SLOTS, PAGES).int()
    slots = torch.tensor([3, 5, 1, 0, 5, 2])  # the last slot pads
    base, tokens = torch.full((6,), -7), torch.full((3, 2), -7)
    pages = torch.full((6, PAGES), -7, dtype=torch.int32)
    read_slots_(slots, (numbers, numbers + 10, drafts, page_table), base, tokens, pages)
    assert base.tolist() == [23, 25, 21, -7, -7, -7]
    assert tokens.tolist() == [[33, 3], [-7, -7], [31, 1]]
    assert torch.equal(pages, page_table[slots])
    with pytest.raises(InputError, match="2 slots for 3 rows of tokens"):
        read_slots_(slots[:2], (numbers, numbers, drafts, page_table), base[:2], tokens, pages[:2])


@pytest.mark.parametrize("num_pages", [1, 4, 5])
def test_records_are_written_to_their_slots(num_pages: int) -> None:
    torch.manual_seed(num_pages)
    size = 5 + RECORD_WORDS + -(-num_pages // 2)
    records = torch.randint(-(2**62), 2**62, (5, size))
    records[:, 0] = torch.tensor([3, SLOTS - 1, 0, -1, 4])  # neither the last slot nor -1 is written
    state = [torch.full((SLOTS,), -7) for _ in range(4)]
    state += [
        torch.full((SLOTS, num_pages), -7, dtype=torch.int32), torch.full((SLOTS, RECORD_WORDS), -7),
        torch.full((SLOTS,), -7), torch.full((DRAFTS, SLOTS), -7),
        torch.full((SLOTS * 3,), -7, dtype=torch.int32), torch.full((SLOTS * 3,), 7.0),
    ]  # fmt: skip
    expected = [each.clone() for each in state]
    for record in records[[0, 2, 4]]:
        slot = int(record[0])
        pages = record[5 + RECORD_WORDS :].contiguous().view(torch.int32)[:num_pages]
        values = (*record[1:5], pages, record[5 : 5 + RECORD_WORDS], 0)
        for tensor, value in zip(expected[:7], values, strict=True):
            tensor[slot] = value
        expected[7][:, slot] = -1
        expected[8].view(SLOTS, 3)[slot], expected[9].view(SLOTS, 3)[slot] = 0, -1
    open_slots_(records, *state)
    assert all(torch.equal(one, other) for one, other in zip(state, expected, strict=True))


def test_records_of_another_size_are_refused() -> None:
    numbers, table = torch.zeros(SLOTS, dtype=torch.int64), torch.zeros(SLOTS, PAGES, dtype=torch.int32)
    size = 5 + RECORD_WORDS + 2
    for wrong in (torch.zeros(2, size + 1, dtype=torch.int64), torch.zeros(2, size)):
        with pytest.raises(InputError, match=rf"records must be \[n, {size}\] int64"):
            open_slots_(
                wrong, numbers, numbers, numbers, numbers, table, numbers, numbers, numbers[None], table[0],
                torch.zeros(SLOTS),
            )  # fmt: skip


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
